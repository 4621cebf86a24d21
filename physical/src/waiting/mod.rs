//! How threads wait: the executor of blocking calls, doorbells, spin budgets, deadlines and stopwatches.

#[cfg(any(test, feature = "cuda", feature = "testing"))]
pub(crate) mod alarm;
pub(crate) mod deadline;
pub(crate) mod doorbell;
pub mod drive;
pub(crate) mod lock;
pub(crate) mod spin_budget;
pub mod stopwatch;
