//! A look at programs that no device runs: whether what they launch is in their module. Open this if a program of yours
//! passes its tests without a GPU, and the driver refuses it.

use crate::device::program::{Argument, Code, Program, parameters};

/// Checks that every entry which a program launches is in its module's PTX, with parameters as the arguments are, and
/// that grids and scratch memory are as they may be. Of a module that is CUDA C++ only the latter.
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
        if let Code::Ptx(text) = program.module.code {
            let parameters = parameters(text, entry);
            let arguments = launch.arguments.iter().map(|argument| argument.parameter()).collect();
            assert_eq!(parameters, Some(arguments), "{entry} of {}: its parameters", program.module.name);
        }
    }
    program.then.iter().for_each(check_program);
}
