// Runs in the kernel before any cell: what a cell says leaves the kernel before the cell ends, also what it or a child
// writes to standard output and error.
//
// Deno says on one connection what comes of a cell (its output, in a queue) and what becomes of it (`error`, `idle`),
// and one cuts into the other when the connection's buffers are full. So text is printed in pieces, and once there is
// more than surely finds room, the cell waits until its output has left. The kernel hears that as a subscriber of its
// own: each message goes to all subscribers before the next. The wait has to be one that no cell can run past, and such
// calls of the system are libc's.
(() => {
  const begun = Symbol.for("kernel_gateway.prelude");
  if (Object.hasOwn(globalThis, begun)) return; // it has run: the gateway was started again
  Object.defineProperty(globalThis, begun, { value: true });

  const { Console, core, jupyter: inner } = Deno[Deno.internal];
  const outer = Deno.jupyter;
  const { broadcast, display, $display } = outer;
  const { broadcastResult, formatInner } = inner;
  const { stringify } = JSON;
  // Characters of text per message, and of output that may be under way unseen. What else a message has is `ENVELOPE`.
  const PIECE = 256 * 1024;
  const ENVELOPE = 600;
  // Milliseconds until it is asked again whether output has left: who has just subscribed may not have been heard.
  const SOON = 5;
  const LATE = 200;

  // Bytes of a file of written text that are kept after they were read. When it is cut, what a child in the background
  // writes at the same moment may be lost, so it is not cut after each cell.
  const KEPT = 16 * 1024 * 1024;
  const { Start: SEEK_START, End: SEEK_END } = Deno.SeekMode;

  const [MFD_CLOEXEC, F_GETFL, F_SETFL, O_WRONLY, O_ACCMODE, O_APPEND, O_CLOEXEC] = [1, 3, 4, 1, 3, 0o2000, 0o2000000];
  const [AF_INET, SOCK_STREAM, SOCK_CLOEXEC, POLLIN] = [2, 1, 0o2000000, 1];
  const libc = Deno.dlopen("libc.so.6", {
    socket: { parameters: ["i32", "i32", "i32"], result: "i32" },
    connect: { parameters: ["i32", "buffer", "u32"], result: "i32" },
    send: { parameters: ["i32", "buffer", "usize", "i32"], result: "isize" },
    recv: { parameters: ["i32", "buffer", "usize", "i32"], result: "isize" },
    poll: { parameters: ["buffer", "u64", "i32"], result: "i32" },
    close: { parameters: ["i32"], result: "i32" },
    memfd_create: { parameters: ["buffer", "u32"], result: "i32" },
    fcntl: { parameters: ["i32", "i32", "i32"], result: "i32" },
    dup3: { parameters: ["i32", "i32", "i32"], result: "i32" },
  }).symbols;

  const started = Deno.readTextFileSync("/proc/self/cmdline").split("\0");
  const { ip, iopub_port } = JSON.parse(Deno.readTextFileSync(started[started.indexOf("--conn") + 1]));
  const address = new Uint8Array(16); // sockaddr_in
  new DataView(address.buffer).setUint16(0, AF_INET, true);
  new DataView(address.buffer).setUint16(2, iopub_port);
  address.set((ip === "0.0.0.0" ? "127.0.0.1" : ip).split("."), 4);

  // What a subscriber says in ZMTP 3.0: its greeting, READY, and that it wants everything.
  const ready = "\x05READY\x0bSocket-Type\0\0\0\x03SUB";
  const greeting = `\xff${"\0".repeat(8)}\x7f\x03\0NULL`.padEnd(64, "\0");
  const hello = Uint8Array.from(`${greeting}\x04${String.fromCharCode(ready.length)}${ready}\0\x01\x01`, (character) =>
    character.charCodeAt(0)
  );
  const latin1 = new TextDecoder("latin1");
  const received = new Uint8Array(PIECE);

  let unseen = 0; // characters that may not have left
  let full = false; // whether this cell has said so much that it must be seen to leave
  let subscriber = -1;

  function unsubscribe() {
    // Left open it would keep the kernel from publishing. An interrupted cell cannot close it: no `finally` runs there.
    if (subscriber >= 0) libc.close(subscriber);
    subscriber = -1;
  }

  function settle() {
    unsubscribe();
    subscriber = libc.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    libc.connect(subscriber, address, address.length);
    libc.send(subscriber, hello, hello.length, 0);
    const asked = new DataView(new ArrayBuffer(8)); // struct pollfd
    asked.setInt32(0, subscriber, true);
    asked.setInt16(4, POLLIN, true);
    const mark = crypto.randomUUID();
    let heard = "";
    for (let wait = SOON; !heard.includes(mark); ) {
      if (libc.poll(asked.buffer, 1, wait) === 0) {
        broadcast("settled", { mark });
        wait = Math.min(2 * wait, LATE);
        continue;
      }
      const length = Number(libc.recv(subscriber, received, received.length, 0));
      if (length <= 0) break; // it cannot be told
      heard = heard.slice(-mark.length) + latin1.decode(received.subarray(0, length));
    }
    unsubscribe();
    unseen = 0;
  }

  function said(length) {
    unseen += length + ENVELOPE;
    if (unseen < PIECE) return;
    full = true;
    settle();
  }

  function weight(data) {
    try {
      return stringify(data).length;
    } catch {
      return PIECE; // it cannot be told
    }
  }

  function show(text, level) {
    unsubscribe();
    for (let start = 0, end; start < text.length; start = end) {
      end = start + PIECE;
      if (end < text.length && text.codePointAt(end - 1) > 0xffff) end--; // not between the halves of a character
      const piece = text.slice(start, end);
      core.print(piece, level > 1);
      said(piece.length);
    }
    if (text.length > PIECE) settle(); // or an error would come before the last piece
  }

  // Deno's kernel gives its own streams, which children inherit, to pipes that nobody prints. In their place come two
  // files in memory: a pipe would be full while a cell waits for a child, because nobody can read it then.
  const written = ["stdout", "stderr"].map((name, index) => {
    const descriptor = libc.memfd_create(new TextEncoder().encode(`${name}\0`), MFD_CLOEXEC);
    libc.fcntl(descriptor, F_SETFL, O_APPEND); // or the text after a cut would begin at the old end
    libc.dup3(descriptor, index + 1, 0);
    const file = Deno.openSync(`/proc/self/fd/${descriptor}`, { read: true, write: true });
    return { descriptor, file, level: index + 1, end: 0, decoder: new TextDecoder() };
  });
  const pipes = []; // in the order in which Deno made them: for output and errors, perhaps several times
  const descriptors = Array.from(Deno.readDirSync("/proc/self/fd"), ({ name }) => Number(name));
  for (const descriptor of descriptors.sort((one, other) => one - other)) {
    if ((libc.fcntl(descriptor, F_GETFL, 0) & O_ACCMODE) !== O_WRONLY) continue;
    const link = Deno.readLinkSync(`/proc/self/fd/${descriptor}`);
    if (!link.startsWith("pipe:")) continue;
    if (!pipes.includes(link)) pipes.push(link);
    libc.dup3(written[pipes.indexOf(link) % 2].descriptor, descriptor, O_CLOEXEC);
  }
  const part = new Uint8Array(PIECE);

  function drain({ final } = {}) {
    for (const stream of written) {
      const { level, file, decoder } = stream;
      const end = file.seekSync(0, SEEK_END); // a child in the background may write on
      if (stream.end < end) file.seekSync(stream.end, SEEK_START);
      while (stream.end < end) {
        const length = file.readSync(part.subarray(0, end - stream.end));
        if (!length) break; // a cell has cut the file
        stream.end += length;
        show(decoder.decode(part.subarray(0, length), { stream: true }), level);
      }
      if (!final) continue;
      show(decoder.decode(), level);
      if (stream.end >= KEPT) {
        file.truncateSync(0);
        stream.end = 0;
      }
    }
  }

  for (const { prototype } of [Deno.stdout.constructor, Deno.stderr.constructor]) {
    const { write, writeSync } = prototype;
    prototype.write = async function (data) {
      const length = await write.call(this, data);
      drain();
      return length;
    };
    prototype.writeSync = function (data) {
      const length = writeSync.call(this, data);
      drain();
      return length;
    };
  }

  function print(text, level) {
    drain();
    show(text, level);
  }

  Object.assign(console, new Console(print));

  outer.broadcast = (type, content, options) => {
    unsubscribe();
    drain({ final: type === "flushed" });
    broadcast(type, content, options);
    if (type === "flushed") {
      // The gateway asks for it behind every cell, and the next begins when it has read all there is.
      unseen = 0;
      full = false;
    } else said(weight(content));
  };

  outer.display = async (object, options = {}) => {
    const data = await formatInner(object, options.raw);
    drain();
    await display({ [$display]: () => data }, { ...options, raw: false });
    said(weight(data));
  };

  inner.broadcastResult = async (count, result) => {
    drain();
    let data = "";
    const formatted = { [$display]: async () => data = await formatInner(result) };
    await broadcastResult(count, result === undefined ? result : formatted);
    said(weight(data));
    if (full) settle();
  };
})();
