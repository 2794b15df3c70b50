//! The figures of all runs, and what follows from them.

use crate::child::Line;
use crate::variant::Variant;
use crate::workload::Workload;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One profiler on one workload, against its unprofiled twin of the same round.
pub struct Measured {
    pub workload: String,
    pub profiler: String,
    pub blocks: u64,
    /// Of every round: the profiled run and the twin's.
    pairs: Vec<(Line, Line)>,
}

impl Measured {
    pub fn new(workload: &str, profiler: &str, blocks: u64) -> Self {
        Self {
            workload: workload.to_owned(),
            profiler: profiler.to_owned(),
            blocks,
            pairs: Vec::new(),
        }
    }

    pub fn add(&mut self, profiled: Line, twin: Line) {
        self.pairs.push((profiled, twin));
    }

    /// Wall time over unprofiled in every round, in ns a block.
    pub fn overheads_ns(&self) -> Vec<f64> {
        self.each(|profiled, twin| (profiled.ns as f64 - twin.ns as f64) / self.n_blocks())
    }

    /// CPU time over unprofiled in every round, in ns a block.
    pub fn cpu_overheads_ns(&self) -> Vec<f64> {
        self.each(|profiled, twin| (profiled.cpu_ns as f64 - twin.cpu_ns as f64) / self.n_blocks())
    }

    /// Wall time of the unprofiled twin in every round, in ns a block.
    pub fn twin_ns(&self) -> Vec<f64> {
        self.each(|_, twin| twin.ns as f64 / self.n_blocks())
    }

    /// Time to finish the report in every round, in ms.
    pub fn reports_ms(&self) -> Vec<f64> {
        self.each(|profiled, _| profiled.report_ns as f64 / 1e6)
    }

    /// CPU time to finish the report in every round, in ms.
    pub fn report_cpus_ms(&self) -> Vec<f64> {
        self.each(|profiled, _| profiled.report_cpu_ns as f64 / 1e6)
    }

    /// Peak resident memory over unprofiled before the report, in every round, in bytes.
    pub fn rss_bytes(&self) -> Vec<f64> {
        self.each(|profiled, twin| {
            (profiled.peak_rss_kib as f64 - twin.peak_rss_kib as f64) * 1024.0
        })
    }

    /// Blocks that the profiler counted in the first round, if it tells.
    pub fn seen(&self) -> Option<u64> {
        self.pairs.first()?.0.seen
    }

    fn n_blocks(&self) -> f64 {
        self.blocks.max(1) as f64
    }

    fn each(&self, figure: impl Fn(&Line, &Line) -> f64) -> Vec<f64> {
        self.pairs
            .iter()
            .map(|(profiled, twin)| figure(profiled, twin))
            .collect()
    }

    fn to_json(&self) -> Value {
        let spread = |values: Vec<f64>| json!({ "median": median(&values), "values": values });
        json!({
            "profiler": self.profiler,
            "workload": self.workload,
            "blocks": self.blocks,
            "blocks_seen": self.seen(),
            "overhead_ns_a_block": spread(self.overheads_ns()),
            "cpu_overhead_ns_a_block": spread(self.cpu_overheads_ns()),
            "unprofiled_ns_a_block": spread(self.twin_ns()),
            "report_ms": spread(self.reports_ms()),
            "report_cpu_ms": spread(self.report_cpus_ms()),
            "peak_rss_over_unprofiled_bytes": spread(self.rss_bytes()),
        })
    }
}

/// The median; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// All runs of all workloads under all profilers.
pub struct Results {
    pub machine: Value,
    /// Name and blocks, in the order in which they run.
    pub workloads: Vec<(&'static str, u64)>,
    /// Of (workload, variant): the runs by round.
    runs: BTreeMap<(&'static str, &'static str), BTreeMap<usize, Line>>,
    /// (variant, its twin), in the order in which they came.
    variants: Vec<(&'static str, &'static str)>,
}

impl Results {
    pub fn new(machine: Value) -> Self {
        Self {
            machine,
            workloads: Vec::new(),
            runs: BTreeMap::new(),
            variants: Vec::new(),
        }
    }

    pub fn add_workload(&mut self, workload: &Workload, blocks: u64) {
        self.workloads.push((workload.name, blocks));
    }

    pub fn add_run(&mut self, workload: &Workload, variant: &Variant, round: usize, line: Line) {
        let names = (variant.name, variant.twin());
        if !self.variants.contains(&names) {
            self.variants.push(names);
        }
        self.runs
            .entry((workload.name, variant.name))
            .or_default()
            .insert(round, line);
    }

    /// The profilers that ran.
    pub fn profilers(&self) -> Vec<&'static str> {
        const ORDER: [&str; 4] = ["milliner", "upstream", "heapscope", "mod-alloc"];
        ORDER
            .into_iter()
            .filter(|name| self.variants.iter().any(|(variant, _)| variant == name))
            .collect()
    }

    /// The runs of a profiler on a workload for which there is a twin in the same round.
    pub fn measured(&self, workload: &'static str, profiler: &'static str) -> Option<Measured> {
        let (_, twin) = self.variants.iter().find(|(name, _)| *name == profiler)?;
        let (_, blocks) = self.workloads.iter().find(|(name, _)| *name == workload)?;
        let twins = self.runs.get(&(workload, *twin))?;
        let mut measured = Measured::new(workload, profiler, *blocks);
        for (round, line) in self.runs.get(&(workload, profiler))? {
            if let Some(twin) = twins.get(round) {
                measured.add(*line, *twin);
            }
        }
        Some(measured)
    }

    /// Median ns a block of an unprofiled variant.
    pub fn unprofiled_ns(&self, workload: &'static str, variant: &'static str) -> Option<f64> {
        let (_, blocks) = self.workloads.iter().find(|(name, _)| *name == workload)?;
        let runs = self.runs.get(&(workload, variant))?;
        let values: Vec<f64> = runs
            .values()
            .map(|line| line.ns as f64 / (*blocks).max(1) as f64)
            .collect();
        median(&values)
    }

    pub fn to_json(&self, outside: &[Measured], skipped: &[String]) -> Value {
        let mut inside = Vec::new();
        for (workload, _) in &self.workloads {
            for profiler in self.profilers() {
                inside.extend(self.measured(workload, profiler).map(|m| m.to_json()));
            }
        }
        let outside: Vec<Value> = outside.iter().map(Measured::to_json).collect();
        json!({
            "machine": self.machine,
            "results": inside,
            "from_outside": outside,
            "skipped": skipped,
        })
    }
}
