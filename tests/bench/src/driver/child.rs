//! Runs one workload in a process of its own.

use crate::Places;
use crate::variant::Variant;
use crate::workload::Workload;
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LONGEST_RUN: Duration = Duration::from_secs(600);

/// What a run tells.
#[derive(Clone, Copy, Default)]
pub struct Line {
    pub ns: u64,
    pub cpu_ns: u64,
    pub report_ns: u64,
    pub report_cpu_ns: u64,
    pub peak_rss_kib: u64,
    /// Blocks counted by the counting allocator.
    pub blocks: Option<u64>,
    /// Blocks counted by the profiler.
    pub seen: Option<u64>,
}

/// Runs a workload under a profiler.
///
/// # Errors
/// Why there is no measurement.
pub fn run(
    places: &Places,
    variant: &Variant,
    workload: &Workload,
    sources: &[PathBuf],
) -> Result<Line, String> {
    let command = Command::new(variant.program(places));
    run_under(command, places, workload, sources)
}

/// Runs a workload with a command that ends in the program's path.
///
/// # Errors
/// Why there is no measurement.
pub fn run_under(
    mut command: Command,
    places: &Places,
    workload: &Workload,
    sources: &[PathBuf],
) -> Result<Line, String> {
    let work = places.work();
    let log = |name: &str| {
        File::create(work.join(name)).map_err(|error| format!("no file for its output: {error}"))
    };
    command
        .args([workload.name, &workload.n.to_string()])
        .arg(work.join("report.json"));
    if workload.name == "parser" {
        command.args(sources);
        // Its table holds 4,096 call sites otherwise, and what does not fit is lost.
        command.env("MOD_ALLOC_BUCKETS", "262144");
    }
    let mut child = command
        .current_dir(&work)
        .stdin(Stdio::null())
        .stdout(log("stdout")?)
        .stderr(log("stderr")?)
        .spawn()
        .map_err(|error| format!("it does not start: {error}"))?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < LONGEST_RUN => sleep(Duration::from_millis(5)),
            _ => {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("ended after {} s", LONGEST_RUN.as_secs()));
            }
        }
    };
    let text = std::fs::read_to_string(work.join("stdout")).unwrap_or_default();
    // A profiler from outside prints lines of its own.
    let line = text
        .lines()
        .find_map(|line| line.find('{').map(|at| &line[at..]));
    if !status.success() {
        let errors = std::fs::read_to_string(work.join("stderr")).unwrap_or_default();
        let last = errors.lines().last().unwrap_or("nothing printed");
        return Err(format!("{status}: {last}"));
    }
    parse(line.unwrap_or_default())
}

fn parse(line: &str) -> Result<Line, String> {
    let value: Value =
        serde_json::from_str(line).map_err(|error| format!("it printed no figures: {error}"))?;
    let number = |name: &str| value[name].as_u64();
    Ok(Line {
        ns: number("ns").ok_or("it printed no time")?,
        cpu_ns: number("cpu_ns").unwrap_or(0),
        report_ns: number("report_ns").unwrap_or(0),
        report_cpu_ns: number("report_cpu_ns").unwrap_or(0),
        peak_rss_kib: number("peak_rss_kib").unwrap_or(0),
        blocks: number("blocks"),
        seen: number("seen"),
    })
}
