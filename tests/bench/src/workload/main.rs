//! Runs one workload under the profiler it was built with and prints one line of JSON.
//!
//! Usage: `workload NAME N REPORT_FILE [SOURCE_DIR]...`

mod churn;
mod json_tree;
mod memory;
mod parser;
mod process;
mod random;

#[cfg(feature = "count")]
#[path = "profiler_count.rs"]
mod profiler;
#[cfg(any(feature = "milliner", feature = "upstream"))]
#[path = "profiler_dhat.rs"]
mod profiler;
#[cfg(feature = "heapscope")]
#[path = "profiler_heapscope.rs"]
mod profiler;
#[cfg(feature = "mod-alloc")]
#[path = "profiler_mod_alloc.rs"]
mod profiler;
#[cfg(not(any(
    feature = "count",
    feature = "milliner",
    feature = "upstream",
    feature = "heapscope",
    feature = "mod-alloc"
)))]
#[path = "profiler_none.rs"]
mod profiler;

use serde_json::json;
use std::any::Any;
use std::path::PathBuf;
use std::time::Instant;

/// How many frames of a stack the profiler keeps.
#[derive(Clone, Copy)]
enum Depth {
    /// The default of the `dhat` crate.
    Ten,
    /// As many as the profiler can.
    All,
}

/// A workload whose input is made; running it returns what must outlive the measurement.
type Prepared = Box<dyn FnOnce() -> Box<dyn Any>>;

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().expect("a workload's name");
    let n: usize = args
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number of repetitions");
    let report_file = PathBuf::from(args.next().expect("a file for the report"));
    let source_dirs: Vec<PathBuf> = args.map(PathBuf::from).collect();

    let workload = prepare(&name, n, &source_dirs);
    let depth = if name.starts_with("deep-") {
        Depth::All
    } else {
        Depth::Ten
    };
    let session = (name != "idle").then(|| profiler::Session::start(&report_file, depth));

    let blocks_before = profiler::blocks_counted();
    let cpu_before = process::cpu_ns();
    let begin = Instant::now();
    let kept = workload();
    let ns = begin.elapsed().as_nanos() as u64;
    let cpu_ns = process::cpu_ns() - cpu_before;
    let blocks = profiler::blocks_counted().zip(blocks_before);

    // The profiler's own count is asked first: asking the system for the peak allocates.
    let seen = session.as_ref().and_then(profiler::Session::total_blocks);
    let peak_rss_kib = process::peak_rss_kib();
    let cpu_before = process::cpu_ns();
    let begin = Instant::now();
    if let Some(session) = session {
        session.finish();
    }
    let report_ns = begin.elapsed().as_nanos() as u64;
    let report_cpu_ns = process::cpu_ns() - cpu_before;
    drop(kept);

    println!(
        "{}",
        json!({
            "ns": ns,
            "cpu_ns": cpu_ns,
            "report_ns": report_ns,
            "report_cpu_ns": report_cpu_ns,
            "peak_rss_kib": peak_rss_kib,
            "blocks": blocks.map(|(after, before)| after - before),
            "seen": seen,
        })
    );
}

fn prepare(name: &str, n: usize, source_dirs: &[PathBuf]) -> Prepared {
    let suffix = |prefix: &str| {
        name.strip_prefix(prefix)
            .and_then(|n| n.parse::<u32>().ok())
    };
    if let Some(n_threads) = suffix("churn-") {
        return churn::on_threads(n, n_threads as usize);
    }
    if let Some(n_frames) = suffix("deep-") {
        return churn::deep(n, n_frames);
    }
    match name {
        "churn" | "idle" => churn::churn(n),
        "paths" => churn::paths(n),
        "parser" => parser::parse(n, source_dirs),
        "json" => json_tree::json_tree(n),
        "growth" => memory::growth(n),
        "handoff" => memory::handoff(n),
        "realloc" => memory::realloc(n),
        "large" => memory::large(n),
        _ => panic!("no workload is called {name}"),
    }
}
