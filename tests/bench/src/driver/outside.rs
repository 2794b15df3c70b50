//! Profilers that watch a program from outside: heaptrack and Valgrind's DHAT.
//!
//! They slow a program down so much that they get a tenth of the work, on two workloads, with the unprofiled program run
//! beside them for comparison.

use crate::child;
use crate::measured::Measured;
use crate::options::Options;
use crate::variant::Variant;
use crate::workload;
use crate::{Places, note};
use std::path::PathBuf;
use std::process::Command;

const WORKLOADS: [&str; 2] = ["churn", "json"];
const N_RUNS: usize = 3;

/// Runs those that are installed.
pub fn run_all(
    places: &Places,
    options: &Options,
    variants: &[Variant],
    sources: &[PathBuf],
    skipped: &mut Vec<String>,
) -> Vec<Measured> {
    let mut all = Vec::new();
    let Some(unprofiled) = variants.iter().find(|variant| variant.name == "none") else {
        return all;
    };
    let counting = variants.iter().find(|variant| variant.name == "count");
    for profiler in ["heaptrack", "valgrind-dhat"] {
        if !options.wants_profiler(profiler) {
            continue;
        }
        let Some(version) = version(profiler) else {
            note(skipped, format!("{profiler}: it is not installed"));
            continue;
        };
        for name in WORKLOADS {
            if !options.wants_workload(name) {
                continue;
            }
            let Some(workload) = workload::reduced(name) else {
                continue;
            };
            let blocks = counting
                .and_then(|counting| child::run(places, counting, &workload, sources).ok())
                .and_then(|line| line.blocks)
                .unwrap_or(0);
            let mut measured = Measured::new(name, &version, blocks);
            for _ in 0..N_RUNS {
                let alone = child::run(places, unprofiled, &workload, sources);
                let watched = child::run_under(
                    command(profiler, unprofiled, places),
                    places,
                    &workload,
                    sources,
                );
                match (alone, watched) {
                    (Ok(alone), Ok(watched)) => measured.add(watched, alone),
                    (Err(reason), _) | (_, Err(reason)) => {
                        note(skipped, format!("{profiler} on {name}: {reason}"));
                        break;
                    }
                }
            }
            all.push(measured);
        }
    }
    all
}

fn version(profiler: &str) -> Option<String> {
    let program = if profiler == "heaptrack" {
        "heaptrack"
    } else {
        "valgrind"
    };
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text.lines().next().unwrap_or(program).to_owned();
    Some(if program == "valgrind" {
        format!("{text} --tool=dhat")
    } else {
        text
    })
}

fn command(profiler: &str, unprofiled: &Variant, places: &Places) -> Command {
    let mut command;
    if profiler == "heaptrack" {
        command = Command::new("heaptrack");
        command.arg("-o").arg(places.work().join("heaptrack"));
    } else {
        command = Command::new("valgrind");
        command.args(["--tool=dhat", "--dhat-out-file=/dev/null"]);
    }
    command.arg(unprofiled.program(places));
    command
}
