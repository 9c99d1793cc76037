// Runs a program, calls its `main`, and answers by one line or one file. For Node and Deno, as a module or as a cell.
await (async (task) => {
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const text64 = (text) => btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
  const { code, arguments: given, marker, file } = JSON.parse(new TextDecoder().decode(bytes(task)));
  const answer = { exit_code: 0 };
  try {
    const AsyncFunction = (async () => {}).constructor;
    const module = { exports: {} };
    const program = new AsyncFunction("module", "exports", "require",
      `${code}\nreturn typeof main === "undefined" ? module.exports.main : main;`);
    const main = await program(module, module.exports, await required());
    if (typeof main !== "function") throw new TypeError("the code defines no function main");
    const value = JSON.stringify(await main(given));
    if (value === undefined) throw new TypeError("main must return a value that JSON knows");
    answer.value = text64(value);
  } catch (error) {
    answer.exit_code = 1;
    console.error(error?.stack ?? String(error));
  }
  if (file) {
    const { writeFileSync } = await import("node:fs");
    writeFileSync(file, JSON.stringify(answer));
  } else {
    console.log(`\n${marker}${JSON.stringify(answer)}`);
  }

  async function required() {
    if (typeof globalThis.require === "function") return globalThis.require;
    try {
      const { createRequire } = await import("node:module");
      return createRequire(`file:///${"main.js"}`);
    } catch {
      return undefined; // it has none; a program that asks for it is told so
    }
  }
})("TASK");
