//! `Profiler`, its builder, and the session state machine.
//!
//! The state's lock is only held to look at the state or to replace it: never while recording starts or stops, a condition
//! runs or a report is written. Nothing here is hook-safe.

#![forbid(unsafe_code)]

use crate::hook::{self, Ignoring, RECORDER};
use crate::recorder::{Mode, Totals};
use crate::report::{self, Output, Session};
use crate::texts;
use crate::unwind::{self, Depth, Registers};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The session state. A session's number is never used again.
enum State {
    /// No Profiler exists.
    Ready,
    /// A Profiler is being built, or one is being stopped; for a moment only.
    Changing,
    /// A Profiler records.
    Running(Running),
    /// An assertion of this session failed; its Profiler still exists.
    PostAssert { session: u64 },
}

/// A session that records.
struct Running {
    session: u64,
    mode: Mode,
    config: Config,
    /// The stack that the Profiler was built on.
    builder_frames: Vec<usize>,
}

struct Config {
    testing: bool,
    file_name: PathBuf,
    trim_backtraces: Option<usize>,
    eprint_json: bool,
}

struct Machine {
    state: State,
    n_sessions: u64,
}

static MACHINE: Mutex<Machine> = Mutex::new(Machine {
    state: State::Ready,
    n_sessions: 0,
});
/// Told when the state leaves `Changing`.
static CHANGED: Condvar = Condvar::new();

/// A running session: recording begins when it is built and ends when it is dropped.
///
/// On drop the profile is saved and a summary printed to stderr, unless the Profiler was built in
/// [testing](ProfilerBuilder::testing) mode. Only one can exist at a time.
///
/// # Examples
/// ```no_run
/// #[global_allocator]
/// static ALLOC: dhat::Alloc = dhat::Alloc;
///
/// fn main() {
///     let _profiler = dhat::Profiler::new_heap();
///     println!("{:?}", vec![1, 2, 3]);
/// }
/// ```
#[derive(Debug)]
#[must_use = "recording ends when the Profiler is dropped"]
pub struct Profiler {
    session: u64,
}

impl Profiler {
    /// Starts heap profiling with the default settings: stacks of at most ten frames, saved to `dhat-heap.json`.
    ///
    /// # Panics
    /// As [`ProfilerBuilder::build`].
    ///
    /// # Examples
    /// ```no_run
    /// let _profiler = dhat::Profiler::new_heap();
    /// ```
    #[inline(never)]
    pub fn new_heap() -> Self {
        Self::builder().build()
    }

    /// Starts ad hoc profiling with the default settings: stacks of at most ten frames, saved to `dhat-ad-hoc.json`.
    ///
    /// # Panics
    /// As [`ProfilerBuilder::build`].
    ///
    /// # Examples
    /// ```no_run
    /// let _profiler = dhat::Profiler::new_ad_hoc();
    /// dhat::ad_hoc_event(1);
    /// ```
    #[inline(never)]
    pub fn new_ad_hoc() -> Self {
        Self::builder().ad_hoc().build()
    }

    /// Gives a builder, for other settings.
    ///
    /// # Examples
    /// ```
    /// let _profiler = dhat::Profiler::builder().testing().build();
    /// ```
    pub const fn builder() -> ProfilerBuilder {
        ProfilerBuilder {
            ad_hoc: false,
            testing: false,
            file_name: None,
            trim_backtraces: Some(DEFAULT_N_FRAMES),
            eprint_json: false,
        }
    }

    /// Stops the session as a drop does, but returns the profile as indented JSON instead of saving it. In testing mode it
    /// returns an empty string and prints nothing.
    #[doc(hidden)]
    pub fn drop_and_get_memory_output(&mut self) -> String {
        let _ignoring = Ignoring::begin();
        stop(self.session).map(Ended::into_json).unwrap_or_default()
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let _ignoring = Ignoring::begin();
        if let Some(ended) = stop(self.session) {
            ended.save();
        }
    }
}

const DEFAULT_N_FRAMES: usize = 10;
const MIN_N_FRAMES: usize = 4;

/// Settings for a [`Profiler`], made by [`Profiler::builder`].
///
/// # Examples
/// ```no_run
/// let _profiler = dhat::Profiler::builder().file_name("heap.json").trim_backtraces(Some(20)).build();
/// ```
#[derive(Debug)]
#[must_use = "nothing is recorded before `build`"]
pub struct ProfilerBuilder {
    ad_hoc: bool,
    testing: bool,
    file_name: Option<PathBuf>,
    trim_backtraces: Option<usize>,
    eprint_json: bool,
}

impl ProfilerBuilder {
    /// Asks for ad hoc profiling instead of heap profiling.
    ///
    /// # Examples
    /// ```
    /// let _profiler = dhat::Profiler::builder().ad_hoc().testing().build();
    /// dhat::ad_hoc_event(3);
    /// ```
    pub fn ad_hoc(mut self) -> Self {
        self.ad_hoc = true;
        self
    }

    /// Asks for testing mode: the assertions work, and nothing is saved or printed unless one fails.
    ///
    /// # Examples
    /// ```
    /// let _profiler = dhat::Profiler::builder().testing().build();
    /// dhat::assert_eq!(dhat::HeapStats::get().curr_blocks, 0);
    /// ```
    pub fn testing(mut self) -> Self {
        self.testing = true;
        self
    }

    /// Sets the file that the profile is saved to; relative to the directory that is current when it is saved.
    ///
    /// # Examples
    /// ```no_run
    /// let _profiler = dhat::Profiler::builder().file_name("/tmp/heap.json").build();
    /// ```
    pub fn file_name<P: AsRef<Path>>(mut self, file_name: P) -> Self {
        self.file_name = Some(file_name.as_ref().to_path_buf());
        self
    }

    /// Sets how many frames of a stack are kept: `Some(n)` keeps the `n` innermost physical frames, at least 4, and trims
    /// the frames of the allocator and below `main`; `None` keeps and shows every frame. Inlined frames do not count. The
    /// default is `Some(10)`.
    ///
    /// # Examples
    /// ```no_run
    /// let _profiler = dhat::Profiler::builder().trim_backtraces(None).build();
    /// ```
    pub fn trim_backtraces(mut self, max_frames: Option<usize>) -> Self {
        self.trim_backtraces = max_frames.map(|n_frames| n_frames.max(MIN_N_FRAMES));
        self
    }

    /// Also prints the JSON to stderr when the profile is saved.
    #[doc(hidden)]
    pub fn eprint_json(mut self) -> Self {
        self.eprint_json = true;
        self
    }

    /// Starts recording.
    ///
    /// # Panics
    /// - `dhat: creating a profiler while a profiler is already running`, also after a failed assertion until that Profiler
    ///   is dropped
    /// - `dhat: no memory for the profiler's tables`
    ///
    /// # Examples
    /// ```no_run
    /// let profiler = dhat::Profiler::builder().build();
    /// drop(profiler);
    /// ```
    #[inline(never)]
    pub fn build(self) -> Profiler {
        let _ignoring = Ignoring::begin();
        let (mode, default_name) = if self.ad_hoc {
            (Mode::AdHoc, "dhat-ad-hoc.json")
        } else {
            (Mode::Heap, "dhat-heap.json")
        };
        let session = claim();
        unwind::prepare();
        let builder_frames = unwind::trace(Registers::here(), Depth::Unlimited);
        let depth = self.trim_backtraces.map_or(Depth::Unlimited, Depth::AtMost);
        if !hook::open(mode, depth, &builder_frames) {
            replace_changing(State::Ready);
            panic!("{}", texts::NO_MEMORY);
        }
        let config = Config {
            testing: self.testing,
            file_name: self
                .file_name
                .unwrap_or_else(|| PathBuf::from(default_name)),
            trim_backtraces: self.trim_backtraces,
            eprint_json: self.eprint_json,
        };
        replace_changing(State::Running(Running {
            session,
            mode,
            config,
            builder_frames,
        }));
        Profiler { session }
    }
}

/// The figures of the heap session that runs.
///
/// # Panics
/// As [`HeapStats::get`](crate::HeapStats::get).
pub(crate) fn heap_totals() -> Totals {
    totals(Mode::Heap, &texts::HEAP_STATS)
}

/// The figures of the ad hoc session that runs.
///
/// # Panics
/// As [`AdHocStats::get`](crate::AdHocStats::get).
pub(crate) fn ad_hoc_totals() -> Totals {
    totals(Mode::AdHoc, &texts::AD_HOC_STATS)
}

fn totals(mode: Mode, texts: &texts::Stats) -> Totals {
    let _ignoring = Ignoring::begin();
    let session = running_session(mode, texts);
    let totals = RECORDER.totals();
    // A session that was stopped meanwhile leaves no figures to tell.
    if running_session(mode, texts) != session {
        panic!("{}", texts.when_ready);
    }
    totals
}

fn running_session(mode: Mode, texts: &texts::Stats) -> u64 {
    if hook::is_orphan() {
        panic!("{}", texts.when_ready);
    }
    let text = match &settled().state {
        State::Running(running) if running.mode == mode => return running.session,
        State::Running(_) => texts.in_other_mode,
        State::PostAssert { .. } => texts.after_assert,
        State::Ready | State::Changing => texts.when_ready,
    };
    panic!("{text}");
}

/// Evaluates an assertion's condition; on failure saves the profile and returns true.
///
/// # Panics
/// As [`dhat::assert!`](crate::assert!), when no assertion can be made.
pub(crate) fn check_assertion(cond: impl FnOnce() -> bool) -> bool {
    let _ignoring = Ignoring::begin();
    if hook::is_orphan() {
        panic!("{}", texts::ASSERT_WHEN_READY);
    }
    let text = match &settled().state {
        State::Running(running) if running.config.testing => None,
        State::Running(_) => Some(texts::ASSERT_NOT_TESTING),
        State::PostAssert { .. } => Some(texts::ASSERT_AFTER_ASSERT),
        State::Ready | State::Changing => Some(texts::ASSERT_WHEN_READY),
    };
    if let Some(text) = text {
        panic!("{text}");
    }
    if cond() {
        return false;
    }
    // The condition may have ended the session; then there is no profile to save.
    if let Some(running) = take_running(|_| true) {
        let session = running.session;
        let ended = end(running);
        replace_changing(State::PostAssert { session });
        ended.save();
    }
    true
}

/// Stops the session with this number, if it still runs; in testing mode nothing comes of it.
fn stop(session: u64) -> Option<Ended> {
    if hook::is_orphan() {
        // The session is the parent's, and so is its file.
        return None;
    }
    if clear_assertion(session) {
        return None;
    }
    let running = take_running(|running| running.session == session)?;
    let ended = end(running);
    replace_changing(State::Ready);
    (!ended.config.testing).then_some(ended)
}

/// A session that no longer records, ready to be reported.
struct Ended {
    session: Session,
    config: Config,
}

impl Ended {
    /// Writes the file and prints the summary.
    fn save(self) {
        report::finish(
            &self.session,
            &Output::File(self.config.file_name),
            self.config.eprint_json,
        );
    }

    /// Prints the summary and returns the JSON.
    fn into_json(self) -> String {
        report::finish(&self.session, &Output::Memory, self.config.eprint_json)
    }
}

/// Stops recording and collects what was recorded.
fn end(running: Running) -> Ended {
    hook::close();
    let snapshot = RECORDER.stop();
    let session = Session {
        snapshot,
        walks: unwind::counts(),
        builder_frames: running.builder_frames,
        trims: running.config.trim_backtraces.is_some(),
        allocator_seen: hook::allocator_seen(),
    };
    Ended {
        session,
        config: running.config,
    }
}

/// The state, once it is not `Changing`.
fn settled() -> MutexGuard<'static, Machine> {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    CHANGED
        .wait_while(machine, |machine| matches!(machine.state, State::Changing))
        .unwrap_or_else(PoisonError::into_inner)
}

/// Takes the right to start a session: `Ready` becomes `Changing`. Returns the session's number.
fn claim() -> u64 {
    if hook::is_orphan() {
        panic!("{}", texts::ALREADY_RUNNING);
    }
    let mut machine = settled();
    if !matches!(machine.state, State::Ready) {
        drop(machine);
        panic!("{}", texts::ALREADY_RUNNING);
    }
    machine.state = State::Changing;
    machine.n_sessions += 1;
    machine.n_sessions
}

/// Takes the right to stop the running session if `wanted` says so: `Running` becomes `Changing`.
fn take_running(wanted: impl FnOnce(&Running) -> bool) -> Option<Running> {
    let mut machine = settled();
    match std::mem::replace(&mut machine.state, State::Changing) {
        State::Running(running) if wanted(&running) => Some(running),
        other => {
            machine.state = other;
            None
        }
    }
}

/// Ends the time after a failed assertion of this session. False if there was none.
fn clear_assertion(session: u64) -> bool {
    let mut machine = settled();
    let is_own =
        matches!(machine.state, State::PostAssert { session: asserted } if asserted == session);
    if is_own {
        machine.state = State::Ready;
    }
    is_own
}

/// Ends `Changing`, which the caller began.
fn replace_changing(state: State) {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner).state = state;
    CHANGED.notify_all();
}
