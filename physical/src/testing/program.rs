//! A check of programs without a device: whether their entries are in their module.

#[cfg(feature = "cuda")]
use super::fail;
#[cfg(feature = "cuda")]
use crate::device::operations::program::unpack;
use crate::device::operations::program::{Argument, Code, Module, Program, parameters};
#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
#[cfg(feature = "cuda")]
use std::sync::{Mutex, PoisonError};

/// Checks that every launched entry is in the PTX of its module, with parameters that match the arguments, and that
/// grids and scratch memory are within limits. For a module in CUDA C++, checks only the latter.
///
/// # Panics
/// If one is not.
#[track_caller]
pub fn check_program(program: &Program) {
    for launch in &program.launches {
        let entry = launch.entry;
        assert!(launch.blocks >= 1 && launch.blocks <= i32::MAX as u32, "{entry}: {} blocks", launch.blocks);
        assert!((1..=1024).contains(&launch.threads), "{entry}: {} threads", launch.threads);
        for argument in &launch.arguments {
            let outside = matches!(argument, Argument::Scratch(offset) if *offset >= program.scratch);
            assert!(!outside, "{entry}: {argument:?}, where {} bytes are asked for", program.scratch);
        }
        if let Some(text) = ptx(program.module) {
            let parameters = parameters(text, entry);
            let arguments = launch.arguments.iter().map(|argument| argument.parameter()).collect();
            assert_eq!(parameters, Some(arguments), "{entry} of {}: its parameters", program.module.name);
        }
    }
    program.then.iter().for_each(check_program);
}

/// Returns a module's PTX; `None` for CUDA C++, and for packed PTX without the feature `cuda`.
///
/// # Panics
/// If the text cannot be unpacked.
#[track_caller]
fn ptx(module: &Module) -> Option<&'static str> {
    match module.code {
        Code::Ptx(text) => Some(text),
        #[cfg(feature = "cuda")]
        Code::Packed(packed) => Some(unpacked(module.name, packed)),
        _ => None,
    }
}

/// Returns the text of packed PTX, which stays in memory: a test checks many programs of one module.
#[cfg(feature = "cuda")]
#[track_caller]
fn unpacked(module: &str, packed: &'static [u8]) -> &'static str {
    static UNPACKED: Mutex<BTreeMap<&[u8], &str>> = Mutex::new(BTreeMap::new());
    let text = || unpack(module, packed).unwrap_or_else(|error| fail(error)).leak();
    UNPACKED.lock().unwrap_or_else(PoisonError::into_inner).entry(packed).or_insert_with(|| text())
}
