# Runs the cells of a Ruby session: `kernel.py` starts it, and sends each cell as one line of JSON.
#
#     ruby cells.rb REQUESTS ANSWERS       numbers of two descriptors
#
# Requests are {"code", "env"} for a cell, and {"input", "refusal"} as the answer to a question. Answers are "input" for a
# question, and for each cell at last "end", with its result or error. What the cell prints goes to the descriptors 1 and
# 2. All cells share one binding, so local variables are kept, too.

require "json"

class KernelGatewayCells
  # Standard input of cells: asks the client for each line.
  class Input
    include Enumerable

    def initialize(cells)
      @cells = cells
    end

    def gets(*, chomp: false, **)
      line = @cells.ask
      line && (chomp ? line : "#{line}\n")
    end

    def readline(...)
      gets(...) || raise(EOFError, "end of file reached")
    end

    def each_line
      return to_enum(:each_line) unless block_given?
      while (line = gets)
        yield line
      end
      self
    end
    alias each each_line

    def readlines(**options)
      each_line.map { |line| options[:chomp] ? line.chomp : line }
    end

    def read(*)
      each_line.to_a.join
    end

    def tty? = false
    alias isatty tty?
    def fileno = 0
  end

  def initialize(requests, answers)
    @requests = IO.for_fd(requests, "r:UTF-8")
    @answers = IO.for_fd(answers, "w:UTF-8")
    # A program that outlives its cell must not keep these open.
    [@requests, @answers].each { |pipe| pipe.close_on_exec = true }
    @answers.sync = $stdout.sync = true
    @process = Process.pid
    @running = false
    $stdin = Input.new(self)
    # The interrupt waits where Ruby must not be interrupted, and is dropped if no cell runs.
    trap("INT") { Thread.main.raise(Interrupt, "") if @running }
  end

  def serve
    Thread.handle_interrupt(Interrupt => :never) do
      while (line = @requests.gets)
        request = JSON.parse(line)
        answer("end", **run(request["code"], request["env"])) if request["code"] # else the answer to an old question
        exit!(0) unless Process.pid == @process # a cell has forked, and this is the fork
      end
    end
  end

  # Asks the client for a line; nil is the end of the input.
  def ask
    answer("input")
    reply = JSON.parse(@requests.gets)
    raise IOError, reply["refusal"] if reply["refusal"]
    reply["input"]
  end

  private

  def run(code, env)
    before = env.to_h { |name, _| [name, ENV[name]] }
    ENV.update(env)
    @running = true
    result = Thread.handle_interrupt(Interrupt => :immediate) do
      value = TOPLEVEL_BINDING.eval(code, "cell", 1)
      value.nil? ? nil : text(value.inspect)
    end
    { result: result }
  rescue Exception => error # every error of a cell is reported, also SystemExit and SyntaxError
    { error: described(error) }
  ensure
    @running = false
    forget_interrupt
    ENV.update(before)
    [$stdout, $stderr].each { |stream| stream.flush rescue nil } # a cell may have closed or replaced it
  end

  # An interrupt that came after the cell's last instruction must not reach the next cell.
  def forget_interrupt
    Thread.handle_interrupt(Interrupt => :immediate) { Thread.pass }
  rescue Interrupt
    nil
  end

  def described(error)
    name, message = error.class.name || error.class.inspect, text(error.message)
    frames = (error.backtrace || []).reject { |frame| frame.start_with?("#{__FILE__}:") }
    error.set_backtrace(frames)
    shown = frames.empty? ? "#{message} (#{name})" : text(error.full_message(highlight: false, order: :top))
    { ename: name, evalue: message, traceback: shown.lines(chomp: true) }
  rescue Exception => another # the error's own methods have failed
    { ename: error.class.name.to_s, evalue: another.class.name.to_s, traceback: [] }
  end

  def text(value)
    value.to_s.encode("UTF-8", invalid: :replace, undef: :replace).scrub
  end

  def answer(kind, **more)
    @answers.puts(JSON.generate({ kind: kind, **more })) if Process.pid == @process
  end
end

KernelGatewayCells.new(*ARGV.shift(2).map(&:to_i)).serve
