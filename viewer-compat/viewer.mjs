// DHAT's own viewer in a real headless browser: finds both, opens profiles, reports what a person would see.

import { access, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

// Where systems put the viewer and the browser. The environment variables come first.
const VIEWERS = [
  process.env.DH_VIEW,
  "/usr/libexec/valgrind/dh_view.html",
  "/usr/lib/x86_64-linux-gnu/valgrind/dh_view.html",
  "/usr/lib/valgrind/dh_view.html",
  "/usr/local/libexec/valgrind/dh_view.html",
];
const BROWSERS = [
  process.env.CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
];
const BROWSER_FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
// How long the viewer may take for one step. Wide trees are slow.
const PATIENCE_MS = 120_000;

// The paths of the viewer and of the browser; `undefined` for what is not installed.
export async function installed() {
  return { viewer: await firstPresent(VIEWERS), browser: await firstPresent(BROWSERS) };
}

async function firstPresent(paths) {
  for (const path of paths.filter(Boolean)) {
    const isPresent = await access(path).then(() => true, () => false);
    if (isPresent) return path;
  }
  return undefined;
}

// A browser with a user data directory of its own, both gone after `close`.
export class Viewer {
  static async open() {
    const { viewer, browser } = await installed();
    if (!viewer) throw new Error("dh_view.html not found: install valgrind, or set DH_VIEW to its path");
    if (!browser) throw new Error("no Chromium found: install chromium, or set CHROMIUM to its path");
    const userData = await mkdtemp(join(tmpdir(), "viewer-compat-"));
    const context = await chromium.launchPersistentContext(userData, {
      executablePath: browser,
      headless: true,
      args: BROWSER_FLAGS,
      locale: "en-US",
      viewport: { width: 1400, height: 1000 },
    });
    return new Viewer(pathToFileURL(viewer).href, context, userData);
  }

  constructor(url, context, userData) {
    Object.assign(this, { url, context, userData });
  }

  async close() {
    await this.context.close();
    await rm(this.userData, { recursive: true, force: true });
  }

  // Loads the profile at `path` through the page's file input and returns what the page shows, once per sort metric that
  // it offers for the profile. `screenshot` is where to save a picture of the default metric.
  async view(path, screenshot) {
    const page = await this.context.newPage();
    const exceptions = [];
    page.on("pageerror", (error) => exceptions.push(String(error)));
    try {
      await page.goto(this.url);
      const before = await page.locator("select").inputValue();
      await page.locator("input[type=file]").setInputFiles(path);
      await settled(page);
      const seen = { exceptions, title: await page.title(), ...(await shown(page)), metrics: [] };
      if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
      if (seen.error === undefined) {
        const options = await page.locator("select option:enabled").evaluateAll((found) =>
          found.map((option) => ({ value: option.value, label: option.label })),
        );
        for (const { value, label } of options) {
          await page.locator("select").selectOption(value);
          await settled(page);
          seen.metrics.push({ label, isDefault: value === before, ...(await shown(page)) });
        }
      }
      return seen;
    } finally {
      await page.close();
    }
  }
}

// The viewer replaces the content of its main part in one task, at the end of which there is a tree or an error.
async function settled(page) {
  await page.waitForFunction(
    () => document.querySelector(".error, pre") !== null,
    undefined,
    { timeout: PATIENCE_MS },
  );
}

// What the main part of the page shows, as rendered: what is hidden is not in the text.
async function shown(page) {
  return page.evaluate(() => {
    const error = document.querySelector(".error");
    const tree = document.querySelector("pre");
    return {
      error: error?.innerText,
      text: tree?.innerText ?? "",
      // Each node of the tree; insignificant ones are shown in short.
      nodes: [...document.querySelectorAll("pre .internal, pre .leaf")].map((node) => ({
        text: node.innerText,
        isSignificant: !node.classList.contains("insig"),
      })),
      isVisible: tree !== null && tree.getBoundingClientRect().height > 0,
    };
  });
}
