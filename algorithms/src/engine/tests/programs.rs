//! Programs are ready before ranks wait for each other.

use super::*;
use crate::optimizer::AdamW;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns the number of modules that the fake driver has loaded; `None` with another driver, or without one.
fn loads() -> Option<u64> {
    // SAFETY: the name ends with 0, and 1 is RTLD_LAZY.
    let library = NonNull::new(unsafe { dlopen(c"libcuda.so.1".as_ptr(), 1) })?;
    // SAFETY: the library is valid, and the name ends with 0.
    let function = NonNull::new(unsafe { dlsym(library.as_ptr(), c"hexagramFakeCount".as_ptr()) })?;
    // SAFETY: the fake driver's function of this name takes a string that ends with 0, and returns a number.
    let function: unsafe extern "C" fn(*const c_char) -> u64 =
        unsafe { std::mem::transmute(function.as_ptr()) };
    // SAFETY: as above.
    Some(unsafe { function(c"loads".as_ptr()) })
}

#[test]
fn all_programs_are_ready_when_the_engine_is_made() {
    if queue().is_host() || loads().is_none() {
        eprintln!("skipped: no fake CUDA driver");
        return;
    }
    // In a separate process, as other tests load modules, too.
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "engine::tests::programs::loads_nothing_later", "--ignored", "--nocapture"]);
    assert!(command.status().unwrap().success());
}

#[test]
#[ignore = "counts what the whole process loads"]
fn loads_nothing_later() {
    let loaded = spawn(TransportKind::Thread, 1, |comm| {
        let options = EngineOptions {
            optimizer: Some(Arc::new(AdamW::default())),
            clip_norm: Some(1.0),
            ..options(400, 400)
        };
        let mut engine = trained_by(&comm, parameters(1, 100), GradientAllReduce, options, (0.1, 1.0))?;
        let before = loads();
        pass(&mut engine, Mode::Synchronize, &[vec![3.0; 100]])?;
        engine.settle()?;
        Ok((before, loads()))
    });
    let loaded = loaded.unwrap();
    assert!(loaded.iter().all(|(before, after)| before == after), "{loaded:?}");
}
