//! Worlds of an elastic job: their generation, and the next one.

use super::World;
use super::departure::{Closes, Departure, close_all};
use crate::error::{exception, usage};
use hexagram::{Error, Result};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[pymethods]
impl World {
    /// Returns the number of this generation of an elastic job, from 1; `None` in a job whose members stay.
    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.member().get(py)?.world.generation())
    }

    /// Returns true once this generation ends: always after an operation has failed because of that, and soon on every member.
    #[getter]
    fn changed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.member().get(py)?.world.changed())
    }

    /// Leaves this generation of an elastic job, and joins the next one, which begins once all processes that are left have
    /// called this. This world is closed, with its communicators, services and engines.
    ///
    /// Raises `UsageError` in a job that is not elastic, `SetupError` if the job ends.
    fn next(&self, py: Python<'_>) -> PyResult<Py<Self>> {
        let world = self.member().get(py)?.world;
        if world.generation().is_none() {
            let refused = py.detach(|| world.next());
            return match refused {
                Err(error) => Err(exception(py, &error)),
                Ok(_) => Err(usage(py, "this world has no generation", "report it as a bug")),
            };
        }
        let deadline = world.deadline().as_secs_f64();
        let Some(departure) = self.member().depart() else {
            // Another thread was faster.
            py.detach(|| drop(world));
            return Err(usage(py, "this world is closed", "call `next` on one thread"));
        };
        self.member().has_next.store(true, Ordering::Release);
        let engines = self.member().engines();
        Self::start(py, Some(deadline), move || follow(world, departure, engines))
    }
}

/// Joins the generation after that of `world`, and ends all parts of the old world.
fn follow(
    world: hexagram::World,
    mut departure: Departure,
    engines: Vec<Arc<dyn Closes>>,
) -> Result<hexagram::World> {
    // All operations fail as soon as the world is left. Their errors have the cause that the program knows.
    let end = move || drop((close_all(&engines), departure.end()));
    let ending = std::thread::Builder::new().name("hexagram-leave".to_owned()).spawn(end);
    let ending = ending
        .map_err(|cause| Error::system("start a thread", cause, "raise the limit of threads (ulimit -u)"))?;
    let next = world.next();
    // A panic has printed its message.
    let _ = ending.join();
    next
}
