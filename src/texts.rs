//! The texts that panics show to users; programs match on them. Those of failed assertions are in the macros, which need
//! literals.

#![forbid(unsafe_code)]

/// Building a Profiler while one exists.
pub(crate) const ALREADY_RUNNING: &str =
    "dhat: creating a profiler while a profiler is already running";
/// Building a Profiler when the system gives no memory for its tables.
pub(crate) const NO_MEMORY: &str = "dhat: no memory for the profiler's tables";
/// Asserting without a Profiler.
pub(crate) const ASSERT_WHEN_READY: &str = "dhat: asserting when no profiler is running";
/// Asserting with a Profiler that saves a profile on drop.
pub(crate) const ASSERT_NOT_TESTING: &str = "dhat: asserting while not in testing mode";
/// Asserting again after a failure.
pub(crate) const ASSERT_AFTER_ASSERT: &str = "dhat: asserting after the profiler has asserted";

/// The texts for figures that cannot be given.
pub(crate) struct Stats {
    /// Without a Profiler.
    pub(crate) when_ready: &'static str,
    /// With a Profiler of the other mode.
    pub(crate) in_other_mode: &'static str,
    /// After a failed assertion.
    pub(crate) after_assert: &'static str,
}

/// For `HeapStats::get`.
pub(crate) const HEAP_STATS: Stats = Stats {
    when_ready: "dhat: getting heap stats when no profiler is running",
    in_other_mode: "dhat: getting heap stats while doing ad hoc profiling",
    after_assert: "dhat: getting heap stats after the profiler has asserted",
};

/// For `AdHocStats::get`.
pub(crate) const AD_HOC_STATS: Stats = Stats {
    when_ready: "dhat: getting ad hoc stats when no profiler is running",
    in_other_mode: "dhat: getting ad hoc stats while doing heap profiling",
    after_assert: "dhat: getting ad hoc stats after the profiler has asserted",
};
