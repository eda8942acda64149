// A vendor's SDK as a program for tests: commands come as JSON lines on stdin ({id, name, args}) and are answered on
// stdout ({id, value} or {id, error}); what the SDK reports by itself is {event, data}. It ends when stdin ends.
"use strict";
const readline = require("node:readline");

const out = process.stdout.write.bind(process.stdout);
const write = (line) => out(JSON.stringify(line) + "\n");
process.stdout.write = (text) => process.stderr.write(text); // what an SDK prints is no answer
for (const name of ["log", "info", "debug", "warn", "error"]) console[name] = (...words) => process.stderr.write(words.map(String).join(" ") + "\n");
process.on("unhandledRejection", (error) => write({ event: "unhandled", data: String(error) }));

exports.tell = (event, data) => write({ event, data });

exports.answer = (commands) => {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", async (line) => {
    const { id, name, args } = JSON.parse(line);
    try {
      const value = await commands[name](args);
      write({ id, value: value === undefined ? null : value });
    } catch (error) {
      write({ id, error: String((error && (error.message || error.stack)) || error) + (error && error.cause ? ` (${error.cause})` : "") });
    }
  });
  lines.on("close", () => process.exit(0));
  write({ event: "ready", data: null });
};
