//! Without the waits at any one place where a stream waits, results are wrong: [`trial`] has a program for each
//! place. It runs in a separate process, over the fake driver, which does no work until a thread waits for it. The
//! program first runs unchanged, and then without the waits of its place, in different orders of work until a result
//! is wrong.
//!
//! That driver ends every test of this crate in which a stream waits without a place, and the compiler requires a
//! program for each place.

mod device;
mod ipc;
mod nccl;
mod rank;

use crate::device::SyncPoint;
use crate::system::library::Library;
use std::env;
use std::ffi::{CString, c_char, c_void};
use std::io::Write;
use std::mem::transmute;
use std::process::Command;
use std::ptr::null;
use std::sync::OnceLock;
use std::time::Duration;

/// Place whose waits a separate process leaves out.
const PLACE: &str = "HEXAGRAM_TEST_PLACE";

/// Orders of work that are tried: with all waits, and without some.
const RIGHT: u32 = 3;
const WRONG: u32 = 60;

/// One run of a program.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// Factor of this run, which distinguishes its results from those of other runs.
    by: f32,
    /// Longest time for which a rank leaves its work undone, so that the other's comes first.
    hold: Duration,
}

/// Program that returns false if a result is wrong.
type TrialProgram = fn(Trial) -> bool;

/// Returns the program that goes wrong without the waits of a place.
fn program(place: SyncPoint) -> TrialProgram {
    match place {
        SyncPoint::BeforeWrite => device::writes_what_is_read,
        SyncPoint::BeforeRead => device::reads_what_is_written,
        SyncPoint::Bell => device::rings_when_all_is_done,
        SyncPoint::BehindForeign => device::reads_what_another_library_writes,
        SyncPoint::ForeignBehind => device::writes_what_another_library_reads,
        SyncPoint::IpcEntered => ipc::reads_contributions,
        SyncPoint::IpcCombined => ipc::reads_what_others_have_combined,
        SyncPoint::IpcRead => ipc::writes_what_others_have_read,
        SyncPoint::IpcMessage => ipc::takes_a_message,
        SyncPoint::IpcTurns => ipc::does_one_after_the_other,
        SyncPoint::NcclBeforeWrite => nccl::writes_what_is_read,
        SyncPoint::NcclInput => nccl::reads_an_input,
        SyncPoint::NcclOutput => nccl::reads_what_it_writes,
        SyncPoint::NcclDone => nccl::reads_a_result,
        SyncPoint::OfTest => panic!("it is not a place of the library"),
    }
}

/// Returns a function of the fake driver that takes a text, if this is the fake one.
fn of_fake(name: &str) -> Option<unsafe extern "C" fn(*const c_char)> {
    let function = Library::open(&["libcuda.so.1"], "").and_then(|library| library.function(name)).ok()?;
    // SAFETY: the fake driver's functions of the names here take a text that ends with 0.
    Some(unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(function) })
}

/// A place that the fake driver attributes this thread's waits to, while this lives.
pub(crate) struct Named;

impl Named {
    pub(crate) fn new(place: SyncPoint) -> Self {
        Self::tell(Some(place));
        Named
    }

    fn tell(place: Option<SyncPoint>) {
        static FUNCTION: OnceLock<Option<unsafe extern "C" fn(*const c_char)>> = OnceLock::new();
        let Some(function) = FUNCTION.get_or_init(|| of_fake("hexagramFakePlace\0")) else { return };
        // SAFETY: a name is static and ends with 0.
        unsafe { function(place.map_or(null(), |place| place.name().as_ptr().cast())) };
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        Self::tell(None);
    }
}

/// Sets the order of work, and the place without waits. Work is done only when a thread waits for it.
fn set(seed: u32, without: &str) {
    configure(&format!("seed={seed},delay=600000000,skip_place={without}"));
}

/// Changes settings of the fake driver.
fn configure(settings: &str) {
    let text = CString::new(settings).unwrap();
    // SAFETY: the text ends with 0.
    unsafe { of_fake("hexagramFakeSet\0").unwrap()(text.as_ptr()) };
}

#[test]
#[ignore = "started as a process by the next one"]
fn goes_wrong_without_a_wait() {
    let Ok(name) = env::var(PLACE) else { return };
    let place = *SyncPoint::ALL.iter().find(|place| format!("{place:?}") == name).unwrap();
    let run = |number: u32, hold| program(place)(Trial { by: (2 + number) as f32, hold });
    for seed in 1..=RIGHT {
        set(seed, "");
        assert!(run(seed, Duration::from_millis(20)), "with all waits, order {seed}");
    }
    println!("right");
    for seed in 1..=WRONG {
        set(seed, &name);
        if !run(RIGHT + seed, Duration::from_secs(3)) {
            end_wrong();
        }
    }
}

/// Ends the process after a wrong result, whatever its state.
fn end_wrong() -> ! {
    println!("wrong");
    std::process::exit(1)
}

/// Returns the output of a place's process if results are right without the waits, or wrong with them.
fn unnoticed(place: SyncPoint) -> Option<String> {
    let mut command = Command::new(env::current_exe().unwrap());
    let test = "device_paths::missing_sync::goes_wrong_without_a_wait";
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(PLACE, format!("{place:?}")).env("HEXAGRAM_FAKE_CUDA", "devices=2");
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    let is_noticed = said.contains("right\n") && said.contains("wrong\n");
    (!is_noticed).then(|| format!("{place:?}: {said}{errors}"))
}

#[test]
fn each_place_at_which_a_stream_is_let_wait_needs_it() {
    if of_fake("hexagramFakePlace\0").is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: no fake CUDA driver");
        return;
    }
    let unnoticed: Vec<String> = SyncPoint::ALL.iter().filter_map(|place| unnoticed(*place)).collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
