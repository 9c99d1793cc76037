# Starts IRkernel, and sends what child processes and C code print: IRkernel itself shows only what R prints.
#
# Descriptors 1 and 2 are files, and not pipes: R reads nothing while it waits for a child, which would stop at a full
# pipe. What is new in them is sent before each message of the cell, so that it comes before the output of the next
# expression, and before the reply.
# All of it is local, because a cell may remove all variables.

local({
  arguments <- commandArgs(trailingOnly = TRUE)

  #: bytes of one message, and of a file that is emptied
  piece <- 2^20
  full <- 2^24

  # Returns a function that gives what is new in a file, as text. The file is gone from its directory then.
  reader <- function(path) {
    file <- file(path, open = "r+b")
    unlink(path)
    at <- 0
    incomplete <- raw()
    function(last) {
      seek(file, at, rw = "read") # the end of a file that was reached once would be final
      new <- readBin(file, "raw", piece)
      at <<- at + length(new)
      if (length(new) == 0 && at > full) {
        seek(file, 0, rw = "write")
        truncate(file)
        at <<- 0
      }
      bytes <- c(incomplete, new)
      incomplete <<- raw()
      if (!last || length(new) > 0) {
        whole <- characters(bytes)
        incomplete <<- bytes[seq_along(bytes) > whole]
        bytes <- bytes[seq_len(whole)]
      }
      bytes[bytes == 0] <- charToRaw(" ")
      iconv(rawToChar(bytes), "UTF-8", "UTF-8", sub = "\uFFFD")
    }
  }

  # Returns the number of bytes without a character at the end that has only begun.
  characters <- function(bytes) {
    for (back in seq_len(min(3, length(bytes)))) {
      byte <- as.integer(bytes[length(bytes) - back + 1])
      if (byte >= 0xC0) {
        needed <- if (byte >= 0xF0) 4 else if (byte >= 0xE0) 3 else 2
        return(length(bytes) - if (needed > back) back else 0)
      }
      if (byte < 0x80) break
    }
    length(bytes)
  }

  printed <- list(stdout = reader(arguments[[2]]), stderr = reader(arguments[[3]]))
  kernel <- IRkernel:::Kernel$new(connection_file = arguments[[1]])
  send <- kernel$executor$send_response
  kernel$executor$send_response <- function(type, request, socket, content) {
    if (type != "execute_input" && !kernel$executor$is_silent()) {
      suspendInterrupts(for (name in names(printed)) {
        repeat {
          text <- printed[[name]](type == "execute_reply")
          if (text == "") break
          send("stream", request, "iopub", list(name = name, text = text))
        }
      })
    }
    send(type, request, socket, content)
  }
  kernel$run()
})
