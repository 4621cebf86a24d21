//! The Python threads of the package: they run callbacks, and drop the objects kept by ended operations if no call
//! does.
//!
//! Communication threads never wait for the interpreter: they queue work for it here. A callback may wait for the callback of
//! another operation. So a thread that takes a callback first ensures that another thread waits for the next: the number of
//! threads is that of callbacks that wait for each other, mostly two.

use crate::fork::Generation;
use crate::memory::elements_owner;
use crate::work::Work;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time after which a thread of the package drops the kept objects, if no call has dropped them before.
const IDLE: Duration = Duration::from_millis(50);
/// Maximum wait for callbacks when the interpreter ends.
const LAST: Duration = Duration::from_secs(5);
/// Number of threads that stay to wait for callbacks; further threads end when idle.
const KEPT: usize = 2;

/// A function to call with the work that has ended.
struct WorkCallback {
    function: Py<PyAny>,
    work: Py<Work>,
}

struct Todo {
    callbacks: VecDeque<WorkCallback>,
    /// True if kept objects can be dropped.
    sweep: bool,
    closed: bool,
    /// Number of threads that run or are about to.
    threads: usize,
    /// Number of threads that wait, or are about to wait, for work.
    idle: usize,
    /// The process to which the threads belong.
    generation: Option<Generation>,
}

/// Next work of a thread.
enum NextWork {
    Call(WorkCallback),
    Sweep,
    End,
}

static TODO: Mutex<Todo> = Mutex::new(Todo {
    callbacks: VecDeque::new(),
    sweep: false,
    closed: false,
    threads: 0,
    idle: 0,
    generation: None,
});
static BELL: Condvar = Condvar::new();
/// Notified when a thread ends.
static ENDED: Condvar = Condvar::new();

fn todo() -> MutexGuard<'static, Todo> {
    TODO.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notifies a thread that there are objects to drop.
pub(crate) fn wake() {
    todo().sweep = true;
    BELL.notify_one();
}

/// Calls a function with the ended work, on a thread of the package.
pub(crate) fn post(function: Py<PyAny>, work: Py<Work>) {
    todo().callbacks.push_back(WorkCallback { function, work });
    BELL.notify_one();
}

/// Starts a thread, unless one is idle.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    let now = Generation::now();
    let mut todo = todo();
    if todo.generation != Some(now) {
        todo.threads = 0;
        todo.idle = 0;
        todo.generation = Some(now);
    }
    if todo.idle > 0 {
        return Ok(());
    }
    todo.threads += 1;
    todo.idle += 1;
    drop(todo);
    spawn(py).inspect_err(|_| {
        let mut todo = self::todo();
        todo.threads -= 1;
        todo.idle -= 1;
    })
}

fn spawn(py: Python<'_>) -> PyResult<()> {
    let options = PyDict::new(py);
    options.set_item("target", wrap_pyfunction!(run_callbacks, py)?)?;
    options.set_item("name", "hexagram")?;
    options.set_item("daemon", true)?;
    let thread = py.import("threading")?.getattr("Thread")?.call((), Some(&options))?;
    thread.call_method0("start").map(drop)
}

/// Ends the threads when their work is done, or after a while.
pub(crate) fn stop(py: Python<'_>) {
    let mut todo = todo();
    todo.closed = true;
    if todo.generation != Some(Generation::now()) {
        return;
    }
    drop(todo);
    BELL.notify_all();
    py.detach(|| {
        drop(ENDED.wait_timeout_while(self::todo(), LAST, |todo| todo.threads > 0));
    });
}

/// Runs callbacks until the interpreter ends, or enough other threads wait for them.
#[pyfunction]
fn run_callbacks(py: Python<'_>) {
    let generation = Generation::now();
    loop {
        match py.detach(next) {
            NextWork::Call(WorkCallback { function, work }) => {
                // If a thread cannot be started, this affects only callbacks that wait for each other.
                let called = start(py).and_then(|()| function.call1(py, (work,)).map(drop));
                if let Err(error) = called {
                    error.write_unraisable(py, Some(function.bind(py)));
                }
                drop(function);
                elements_owner::sweep(py, generation);
            }
            NextWork::Sweep => elements_owner::sweep(py, generation),
            NextWork::End => return,
        }
        let mut todo = todo();
        if todo.idle >= KEPT {
            todo.threads -= 1;
            ENDED.notify_all();
            return;
        }
        todo.idle += 1;
    }
}

/// Waits for work. The thread counts as idle until it has some.
fn next() -> NextWork {
    let idle = |todo: &mut Todo| todo.callbacks.is_empty() && !todo.sweep && !todo.closed;
    let mut todo = BELL.wait_while(todo(), idle).unwrap_or_else(PoisonError::into_inner);
    if todo.callbacks.is_empty() && !todo.closed {
        let idle = |todo: &mut Todo| todo.callbacks.is_empty() && !todo.closed;
        todo = BELL.wait_timeout_while(todo, IDLE, idle).unwrap_or_else(PoisonError::into_inner).0;
    }
    todo.sweep = false;
    todo.idle -= 1;
    match todo.callbacks.pop_front() {
        Some(callback) => NextWork::Call(callback),
        None if todo.closed => {
            todo.threads -= 1;
            ENDED.notify_all();
            NextWork::End
        }
        None => NextWork::Sweep,
    }
}
