//! The results as Markdown tables.

use crate::measured::{Measured, Results, median};
use serde_json::Value;
use std::fmt::Write;

/// All tables, the conditions first.
pub fn markdown(results: &Results, outside: &[Measured], skipped: &[String]) -> String {
    let mut text = String::new();
    conditions(&mut text, &results.machine);
    overhead(&mut text, results);
    share(&mut text, results);
    finish(&mut text, results);
    memory(&mut text, results);
    cpu(&mut text, results);
    watched(&mut text, outside);
    counts(&mut text, results);
    single_values(&mut text, results);
    if !skipped.is_empty() {
        text.push_str("\nSkipped:\n");
        for reason in skipped {
            let _ = writeln!(text, "- {reason}");
        }
    }
    text
}

fn conditions(text: &mut String, machine: &Value) {
    let field = |name: &str| match &machine[name] {
        Value::String(value) => value.clone(),
        other => other.to_string(),
    };
    let _ = writeln!(
        text,
        "{}, {} cores, {}; {}; commit {}; {}, {}; {}; load at start {}; {} rounds{}; `{}`",
        field("cpu"),
        field("cores"),
        field("system"),
        field("date"),
        field("commit"),
        field("rustc"),
        field("rustc_nightly"),
        field("peers"),
        field("load_at_start"),
        field("rounds"),
        if machine["quick"] == true {
            ", QUICK: a tenth of the work, not to be quoted"
        } else {
            ""
        },
        field("command"),
    );
}

/// One table: a row a workload, a column a profiler.
fn table(
    text: &mut String,
    title: &str,
    results: &Results,
    rows: impl Fn(&str) -> bool,
    cell: impl Fn(&Measured) -> Option<String>,
) {
    let profilers = results.profilers();
    let _ = writeln!(
        text,
        "\n{title}\n\n| workload | {} |",
        profilers.join(" | ")
    );
    let _ = writeln!(text, "|---|{}", "---:|".repeat(profilers.len()));
    for (workload, _) in results.workloads.iter().filter(|(name, _)| rows(name)) {
        let _ = write!(text, "| {workload} |");
        for profiler in &profilers {
            let measured = results.measured(workload, profiler);
            let cell = measured.as_ref().and_then(&cell);
            let _ = write!(text, " {} |", cell.unwrap_or_else(|| "–".to_owned()));
        }
        text.push('\n');
    }
}

fn overhead(text: &mut String, results: &Results) {
    let profilers = results.profilers();
    let twins = ["none", "none-fp", "none-fp-nightly"];
    let _ = writeln!(
        text,
        "\nMedian ns a block over the unprofiled program, and ns a block of the unprofiled programs\n\n| workload | blocks | {} | {} |",
        profilers.join(" | "),
        twins.join(" | ")
    );
    let _ = writeln!(
        text,
        "|---|{}",
        "---:|".repeat(1 + profilers.len() + twins.len())
    );
    for (workload, blocks) in &results.workloads {
        let _ = write!(text, "| {workload} | {blocks} |");
        for profiler in &profilers {
            let measured = results.measured(workload, profiler);
            let value = measured.and_then(|measured| median(&measured.overheads_ns()));
            let _ = write!(text, " {} |", ns(value));
        }
        for twin in twins {
            let _ = write!(text, " {} |", ns(results.unprofiled_ns(workload, twin)));
        }
        text.push('\n');
    }
}

fn share(text: &mut String, results: &Results) {
    let peers: Vec<&'static str> = results
        .profilers()
        .into_iter()
        .filter(|name| *name != "milliner")
        .collect();
    if peers.len() == results.profilers().len() {
        return;
    }
    let median_of = |workload, profiler| {
        let measured = results.measured(workload, profiler);
        measured.and_then(|measured| median(&measured.overheads_ns()))
    };
    let _ = writeln!(
        text,
        "\nThis crate's overhead as a share of a peer's\n\n| workload | of {} |",
        peers.join(" | of ")
    );
    let _ = writeln!(text, "|---|{}", "---:|".repeat(peers.len()));
    for (workload, _) in &results.workloads {
        let _ = write!(text, "| {workload} |");
        for peer in &peers {
            let share = median_of(workload, "milliner")
                .zip(median_of(workload, peer))
                .filter(|(_, peer)| *peer > 0.0)
                .map(|(own, peer)| format!("{:.3}", own / peer));
            let _ = write!(text, " {} |", share.unwrap_or_else(|| "–".to_owned()));
        }
        text.push('\n');
    }
}

fn finish(text: &mut String, results: &Results) {
    table(
        text,
        "Median ms to finish the report, and CPU ms of it (mod-alloc's has no names)",
        results,
        |name| name != "idle",
        |measured| {
            let wall = median(&measured.reports_ms())?;
            let cpu = median(&measured.report_cpus_ms())?;
            Some(format!("{wall:.1} ({cpu:.1})"))
        },
    );
}

fn memory(text: &mut String, results: &Results) {
    table(
        text,
        "Median peak resident memory over the unprofiled program before the report, MiB; for growth also bytes a live block",
        results,
        |_| true,
        |measured| {
            let bytes = median(&measured.rss_bytes())?;
            let mib = format!("{:.1}", bytes / f64::from(1 << 20));
            Some(if measured.workload == "growth" && measured.blocks > 0 {
                format!("{mib} ({:.1} B)", bytes / measured.blocks as f64)
            } else {
                mib
            })
        },
    );
}

fn cpu(text: &mut String, results: &Results) {
    table(
        text,
        "Median CPU time over the unprofiled program, all threads, ns a block",
        results,
        |_| true,
        |measured| median(&measured.cpu_overheads_ns()).map(|value| ns(Some(value))),
    );
}

fn watched(text: &mut String, outside: &[Measured]) {
    if outside.is_empty() {
        return;
    }
    text.push_str(
        "\nFrom outside, the unprofiled program with a tenth of the work: median ns a block over unprofiled\n\n| workload | profiler | blocks | ns | single values |\n|---|---|---:|---:|---|\n",
    );
    for measured in outside {
        let values = measured.overheads_ns();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            measured.workload,
            measured.profiler,
            measured.blocks,
            ns(median(&values)),
            list(&values)
        );
    }
}

fn counts(text: &mut String, results: &Results) {
    text.push_str("\nBlocks that profilers counted otherwise than the counting allocator:\n");
    let mut is_none = true;
    for (workload, blocks) in &results.workloads {
        for profiler in results.profilers() {
            let measured = results.measured(workload, profiler);
            if let Some(seen) = measured.and_then(|measured| measured.seen())
                && seen != *blocks
            {
                is_none = false;
                let _ = writeln!(text, "- {workload}, {profiler}: {seen} of {blocks}");
            }
        }
    }
    if is_none {
        text.push_str("none\n");
    }
}

fn single_values(text: &mut String, results: &Results) {
    text.push_str(
        "\nSingle values, ns a block over unprofiled, by round\n\n| workload | profiler | values |\n|---|---|---|\n",
    );
    for (workload, _) in &results.workloads {
        for profiler in results.profilers() {
            if let Some(measured) = results.measured(workload, profiler) {
                let values = list(&measured.overheads_ns());
                let _ = writeln!(text, "| {workload} | {profiler} | {values} |");
            }
        }
    }
}

fn list(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| ns(Some(*value))).collect();
    texts.join(" ")
}

fn ns(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}
