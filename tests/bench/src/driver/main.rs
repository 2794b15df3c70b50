//! Builds one program under every profiler, runs them interleaved, and tells what each of them costs.
//!
//! Usage: `bench [--rounds N] [--only WORKLOAD,…] [--profilers PROFILER,…] [--quick]`

mod child;
mod machine;
mod measured;
mod options;
mod outside;
mod table;
mod variant;
mod workload;

use measured::{Measured, Results};
use options::Options;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use variant::Variant;

/// Where the crate is and where the benchmark puts what it makes.
pub struct Places {
    pub package: PathBuf,
    pub output: PathBuf,
}

impl Places {
    fn find() -> Self {
        let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let output = package.join("../../target/bench");
        std::fs::create_dir_all(output.join("work")).expect("target/bench can be made");
        Self {
            output: output.canonicalize().expect("it was just made"),
            package,
        }
    }

    fn work(&self) -> PathBuf {
        self.output.join("work")
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("bench: {message}");
            return ExitCode::from(2);
        }
    };
    let places = Places::find();
    let mut skipped = Vec::new();
    let variants = build_all(&places, &options, &mut skipped);
    let Some(counting) = variants.iter().find(|variant| variant.name == "count") else {
        eprintln!("bench: the workloads do not build");
        return ExitCode::FAILURE;
    };
    let sources = workload::parser_sources(&places.package, options.quick);
    let workloads: Vec<_> = workload::all(options.quick)
        .into_iter()
        .filter(|workload| options.wants_workload(workload.name))
        .collect();

    let mut results = Results::new(machine::describe(&places, &options));
    for workload in &workloads {
        let blocks = child::run(&places, counting, workload, &sources)
            .ok()
            .and_then(|line| line.blocks)
            .unwrap_or(0);
        eprintln!("{}: {blocks} blocks", workload.name);
        results.add_workload(workload, blocks);
    }

    let profilers: Vec<&Variant> = variants
        .iter()
        .filter(|variant| variant.name != "count")
        .collect();
    for round in 0..options.n_rounds {
        for workload in &workloads {
            eprintln!(
                "round {} of {}: {}",
                round + 1,
                options.n_rounds,
                workload.name
            );
            // Another one goes first in every round.
            for turn in 0..profilers.len() {
                let variant = profilers[(turn + round) % profilers.len()];
                if let Some(reason) = workload.unfit(variant) {
                    note(
                        &mut skipped,
                        format!("{} on {}: {reason}", variant.name, workload.name),
                    );
                    continue;
                }
                match child::run(&places, variant, workload, &sources) {
                    Ok(line) => results.add_run(workload, variant, round, line),
                    Err(reason) => note(
                        &mut skipped,
                        format!("{} on {}: {reason}", variant.name, workload.name),
                    ),
                }
            }
        }
    }
    let from_outside = outside::run_all(&places, &options, &variants, &sources, &mut skipped);
    report(&places.output, &results, &from_outside, &skipped)
}

fn build_all(places: &Places, options: &Options, skipped: &mut Vec<String>) -> Vec<Variant> {
    let mut built = Vec::new();
    for variant in variant::all() {
        if variant.is_profiler() && !options.wants_profiler(variant.name) {
            continue;
        }
        eprintln!("building {}", variant.name);
        match variant.build(places) {
            Ok(()) => built.push(variant),
            Err(reason) => note(skipped, format!("{}: {reason}", variant.name)),
        }
    }
    // A profiler without its twin has nothing to be compared with.
    let names: Vec<&str> = built.iter().map(|variant| variant.name).collect();
    built.retain(|variant| names.contains(&variant.twin()));
    built
}

fn note(skipped: &mut Vec<String>, text: String) {
    if !skipped.contains(&text) {
        eprintln!("SKIPPED: {text}");
        skipped.push(text);
    }
}

fn report(output: &Path, results: &Results, outside: &[Measured], skipped: &[String]) -> ExitCode {
    let markdown = table::markdown(results, outside, skipped);
    print!("{markdown}");
    let json = serde_json::to_string_pretty(&results.to_json(outside, skipped))
        .expect("plain values can be written");
    let is_written = std::fs::write(output.join("results.md"), markdown)
        .and_then(|()| std::fs::write(output.join("results.json"), json + "\n"));
    match is_written {
        Ok(()) => {
            eprintln!("written: {}/results.md and results.json", output.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: the results cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}
