// Runs a whole program in a fresh kernel: the cell that is sent is this text, and a call of `runProgram`.
// `sessions/programs/outcomes.py` reads the answer. The program is a CommonJS module, in the file `main.js`. A script has
// no `main`, and the globals that Node gives to scripts.

async function runProgram(text) {
  const program = JSON.parse(text);
  const { default: fs } = await import("node:fs");
  const { default: path } = await import("node:path");
  const { default: process } = await import("node:process");
  const { createRequire } = await import("node:module");
  const say = Deno.jupyter.broadcast.bind(Deno.jupyter);
  const stringify = JSON.stringify;
  const file = path.resolve("main.js");
  const artifacts = path.resolve("artifacts");
  const answer = { exit_code: 1, value: null, error: "", unread: null, artifacts: false };

  // To exit would end the kernel before it has said anything. What throws in a callback would end it, too.
  const exit = Symbol("exit");
  let throws = true;
  const left = new Promise((resolve) => {
    Deno.exit = process.exit = (code) => {
      resolve({ [exit]: Number(code ?? process.exitCode ?? 0) & 0xff });
      if (throws) throw exit;
    };
  });

  const script = async () => {
    const { Buffer } = await import("node:buffer");
    Object.assign(globalThis, { Buffer, global: globalThis, process });
    fs.writeFileSync(file, program.code);
    createRequire(file)(file);
    if (process.exitCode) process.exit();
    return { value: null };
  };

  const run = async () => {
    fs.mkdirSync(artifacts, { recursive: true });
    if (program.script) return await script();
    fs.writeFileSync(file, `${program.code}\n;if (typeof main !== "undefined") module.exports = { main };\n`);
    const { main } = createRequire(file)(file);
    if (typeof main !== "function") throw new ReferenceError("main is not defined");
    const promised = main(program.arguments);
    throws = false;
    const value = stringify(await promised);
    if (value === undefined) throw new TypeError("main() must return a value that JSON has; null is one");
    if (stringify(value).length * 3 > program.most) throw new RangeError("the value of main() is too large");
    return { value };
  };

  try {
    const ended = await Promise.race([run().catch((error) => (error === exit ? left : Promise.reject(error))), left]);
    if (exit in ended) answer.exit_code = ended[exit];
    else Object.assign(answer, { exit_code: 0, value: ended.value });
  } catch (error) {
    const lines = String(error?.stack ?? error).split("\n");
    // Below the last frame of the program there are only ours, and those of the runtime.
    while (/^ {4}at /.test(lines.at(-1)) && !lines.at(-1).includes(file)) lines.pop();
    answer.error = `${lines.join("\n").slice(0, 200_000)}\n`;
  }
  try {
    answer.artifacts = fs.readdirSync(artifacts).length > 0;
  } catch {
    // The program has removed it.
  }
  await say("display_data", { data: { "application/vnd.kernel-gateway.run+json": answer }, metadata: {}, transient: {} });
}
