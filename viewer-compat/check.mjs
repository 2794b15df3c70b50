// Checks profiles in DHAT's viewer: node check.mjs [--screenshots DIR] PROFILE...
// Exit status: 0 when a person would see every profile right, 1 when not, 2 for a wrong call or a missing viewer or browser.

import { mkdir, readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { complaints } from "./judge.mjs";
import { Viewer, installed } from "./viewer.mjs";

const USAGE = "usage: node check.mjs [--screenshots DIR] PROFILE...";

async function main() {
  const { values, positionals } = parse();
  const { viewer, browser } = await installed();
  if (!viewer || !browser) {
    fail(`dh_view.html: ${viewer ?? "MISSING (install valgrind)"}; Chromium: ${browser ?? "MISSING (install chromium)"}`);
  }
  if (values.screenshots) await mkdir(values.screenshots, { recursive: true });
  const opened = await Viewer.open();
  try {
    for (const [idx, path] of positionals.entries()) {
      // Numbered, since profiles in different directories often have one name.
      const picture = `${idx + 1}-${basename(path, ".json")}.png`;
      await check(opened, path, values.screenshots && join(values.screenshots, picture));
    }
  } finally {
    await opened.close();
  }
}

function parse() {
  try {
    const parsed = parseArgs({
      options: { screenshots: { type: "string" } },
      allowPositionals: true,
    });
    if (parsed.positionals.length > 0) return parsed;
  } catch (error) {
    console.error(error.message);
  }
  return fail(USAGE);
}

function fail(message) {
  console.error(message);
  process.exit(2);
}

async function check(opened, path, screenshot) {
  const name = basename(path);
  const profile = JSON.parse(await readFile(path, "utf8"));
  const found = complaints(profile, name, await opened.view(path, screenshot));
  console.log(`${found.length === 0 ? "ok" : "NOT OK"} ${path}`);
  for (const complaint of found) console.log(`  ${complaint}`);
  if (found.length > 0) process.exitCode = 1;
}

await main();
