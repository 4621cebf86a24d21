//! hexagram for Python: the module `hexagram._native`. Its classes are documented where Python tools look for it, in
//! `hexagram/_native.pyi`.
//!
//! Reading order: `memory` (arguments), `communicator` (the primitives), `work` (how a call waits), `callbacks`
//! (deferred calls), `world` (joining and leaving), `asynchronous` (objects with their own threads).

mod asynchronous;
mod callbacks;
mod communicator;
mod encoding;
mod engine;
mod error;
mod fork;
mod memory;
mod program;
mod sampler;
mod values;
mod work;
mod world;

use pyo3::prelude::*;

/// Leaves all worlds and ends the threads of the package, when the interpreter ends.
#[pyfunction]
#[pyo3(signature = (because = None))]
fn shut_down(py: Python<'_>, because: Option<&str>) -> PyResult<()> {
    if let Some(because) = because {
        // First, as objects that end early below would give their own reasons, or wait for the others.
        world::give_up_all(py, because);
    }
    let ended = engine::end_all(py);
    let left = world::leave_all(py, because.is_some());
    callbacks::stop(py);
    // A rank that has failed has already reported why.
    if because.is_some() { left } else { ended.and(left) }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<world::World>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<communicator::Hierarchy>()?;
    module.add_class::<encoding::Encoding>()?;
    module.add_class::<encoding::LinearEncoding>()?;
    module.add_class::<work::Work>()?;
    module.add_class::<asynchronous::Service>()?;
    module.add_class::<asynchronous::Window>()?;
    module.add_class::<asynchronous::PairExchange>()?;
    module.add_class::<asynchronous::Clock>()?;
    module.add_class::<asynchronous::Server>()?;
    module.add_class::<asynchronous::Background>()?;
    module.add_class::<asynchronous::Average>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::BucketView>()?;
    module.add_class::<engine::Snapshots>()?;
    module.add_function(wrap_pyfunction!(engine::algorithms, module)?)?;
    module.add_function(wrap_pyfunction!(engine::needs_learning_rate, module)?)?;
    module.add_class::<engine::CommunicationHook>()?;
    module.add_class::<memory::Span>()?;
    module.add_class::<memory::Memory>()?;
    module.add_function(wrap_pyfunction!(memory::gpu::make_stream_wait, module)?)?;
    module.add_class::<sampler::Sampler>()?;
    module.add_class::<sampler::SamplerIterator>()?;
    module.add_function(wrap_pyfunction!(program::main, module)?)?;
    module.add_function(wrap_pyfunction!(world::joined, module)?)?;
    module.add_function(wrap_pyfunction!(world::restarts, module)?)?;
    module.add_function(wrap_pyfunction!(shut_down, module)?)
}
