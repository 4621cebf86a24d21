//! Parts of the GPU programs of codecs.

use crate::codec::NotFinite;
use hexagram_physical::device::program::{Argument, Launch, Module, Program};

/// Largest number of blocks of a launch with separate work for each block.
const MOST_BLOCKS: usize = i32::MAX as usize;

/// Returns the kernel argument for the treatment of NaN and infinity.
pub(crate) fn policy(not_finite: NotFinite) -> Argument {
    Argument::U32(match not_finite {
        NotFinite::Refuse => 0,
        NotFinite::Propagate => 1,
        NotFinite::Saturate => 2,
    })
}

/// Returns the launch of an entry with a thread block for each of `count` parts.
pub(crate) fn each(entry: &'static str, count: usize, threads: u32, arguments: Vec<Argument>) -> Launch {
    Launch { entry, blocks: count.clamp(1, MOST_BLOCKS) as u32, threads, arguments }
}

/// Returns the program of these launches, in their order.
pub(crate) fn program(module: &'static Module, launches: Vec<Launch>) -> Program {
    Program { module, launches, scratch: 0, damage: "", then: Vec::new() }
}
