//! Programs of the codecs that encode in blocks, for a GPU.
//!
//! `physical/cuda/blocks.cuh` defines the kernels of all of them: a warp works on a tile, which is a block, or a piece of a
//! larger one. Blocks up to the size of a tile take one launch. Larger ones take three: every tile is measured, a
//! header is computed from the measures of a block, and then the codes are written. If codes do not need the header,
//! the first launch writes them.

use crate::codec::NotFinite;
use crate::codec::shared::launches::{policy, program};
use crate::codec::shared::not_finite::PIECE;
use hexagram_physical::device::program::{Argument, Launch, Module, Program};

/// Maximum number of elements of a tile, and of a tile in registers: `TILE` and `SMALL_TILE`.
const TILE: usize = PIECE;
const SMALL_TILE: usize = 128;
/// Block size of a codec without headers.
pub(crate) const PIECES: Option<usize> = Some(PIECE);
/// Size of the measures of a tile, in bytes.
const MEASURE: usize = 8;
/// Number of threads of a warp, and of warps of a block of threads: `WARP` and `WARPS`.
const WARP: u32 = 32;
const WARPS: u32 = 4;
/// Number of threads that make a header of few measures, and of many.
const FEW_THREADS: u32 = 2 * WARP;
const MANY_THREADS: u32 = 512;
/// Maximum number of thread blocks of a launch.
const MOST_BLOCKS: usize = 65_535;

/// Module and names of a codec's kernels, as `PLAIN_KERNELS` or `BLOCK_KERNELS` define them.
#[derive(Debug)]
pub struct Kernels {
    pub(crate) module: &'static Module,
    pub(crate) encode: &'static str,
    /// `None` without headers, for which nothing waits.
    pub(crate) small: Option<&'static str>,
    pub(crate) measure: &'static str,
    pub(crate) head: &'static str,
    /// `None` if codes are written before the header.
    pub(crate) code: Option<&'static str>,
    pub(crate) decode: &'static str,
    pub(crate) decode_add: &'static str,
}

/// Returns the [`Module`] of a packed file: `module!("int4", INT4)`.
macro_rules! module {
    ($name:literal, $packed:ident) => {
        hexagram_physical::device::program::Module {
            name: $name,
            code: hexagram_physical::device::program::Code::Packed(hexagram_ptx::$packed),
        }
    };
}

/// Returns the [`Kernels`] of a codec's file, `kernels!("int4", INT4)`, or of one codec of several in a module.
macro_rules! kernels {
    ($name:literal, $module:expr, $small:expr, $code:expr) => {
        $crate::codec::shared::blocks::cuda::Kernels {
            module: $module,
            encode: concat!($name, "_encode"),
            small: $small,
            measure: concat!($name, "_measure"),
            head: concat!($name, "_head"),
            code: $code,
            decode: concat!($name, "_decode"),
            decode_add: concat!($name, "_decode_add"),
        }
    };
    ($name:literal, $packed:ident, $code:expr) => {{
        use $crate::codec::shared::blocks::cuda::{kernels, module};
        static MODULE: hexagram_physical::device::program::Module = module!($name, $packed);
        kernels!($name, &MODULE, Some(concat!($name, "_small")), $code)
    }};
    ($name:literal, $packed:ident) => {
        $crate::codec::shared::blocks::cuda::kernels!($name, $packed, Some(concat!($name, "_code")))
    };
}

pub(crate) use {kernels, module};

impl Kernels {
    /// Returns the program that encodes `len` elements in blocks of `size`, or, if `None`, in one block.
    pub(crate) fn encode(&self, size: Option<usize>, len: usize, not_finite: NotFinite) -> Program {
        let cut = BlockTiles::new(size, len);
        let from = Argument::Operand(0);
        let message = Argument::Operand(1);
        let policy = policy(not_finite);
        if cut.size <= TILE {
            let entry = self.small.filter(|_| cut.size <= SMALL_TILE).unwrap_or(self.encode);
            let encode = cut.launch(entry, cut.tiles, from, message, &[policy, Argument::Refusing]);
            return program(self.module, encode.into_iter().collect());
        }
        let measures = Argument::Scratch(0);
        let more = [policy, measures, Argument::Refusing];
        let measure = cut.launch(self.measure, cut.tiles, from, message, &more);
        let head = cut.head(self.head, measures, message);
        let code = self.code.and_then(|code| cut.launch(code, cut.tiles, from, message, &[policy]));
        let launches = measure.into_iter().chain(head).chain(code).collect();
        Program { scratch: cut.tiles * MEASURE, ..program(self.module, launches) }
    }

    /// Returns the program that decodes `len` elements in blocks of `size`. Every message of the right size is valid.
    pub(crate) fn decode(&self, size: Option<usize>, len: usize, weight: Option<f32>) -> Program {
        let cut = BlockTiles::new(size, len);
        let entry = if weight.is_some() { self.decode_add } else { self.decode };
        let weight: Vec<Argument> = weight.map(Argument::F32).into_iter().collect();
        let launch = cut.launch(entry, cut.tiles, Argument::Operand(0), Argument::Operand(1), &weight);
        program(self.module, launch.into_iter().collect())
    }
}

/// Division of a run into blocks, and of blocks into tiles.
#[derive(Debug, Clone, Copy)]
struct BlockTiles {
    len: usize,
    size: usize,
    blocks: usize,
    /// Number of tiles of all blocks, where every block counts as a full one.
    tiles: usize,
}

impl BlockTiles {
    fn new(size: Option<usize>, len: usize) -> Self {
        let size = size.unwrap_or(len).clamp(1, len.max(1));
        let blocks = len.div_ceil(size);
        BlockTiles { len, size, blocks, tiles: blocks * size.div_ceil(TILE) }
    }

    /// Returns the launch of an entry with a warp for each of `count` parts; `None` for 0 parts.
    fn launch(
        self,
        entry: &'static str,
        warps: usize,
        from: Argument,
        to: Argument,
        more: &[Argument],
    ) -> Option<Launch> {
        let blocks = warps.div_ceil(WARPS as usize).min(MOST_BLOCKS) as u32;
        let arguments = [&[from, to], &self.numbers()[..], more].concat();
        (blocks > 0).then_some(Launch { entry, blocks, threads: WARP * WARPS, arguments })
    }

    /// Returns the launch of an entry with a thread block for each header; `None` without headers.
    fn head(self, entry: &'static str, from: Argument, to: Argument) -> Option<Launch> {
        let many = self.tiles / self.blocks.max(1) > FEW_THREADS as usize;
        let threads = if many { MANY_THREADS } else { FEW_THREADS };
        let blocks = self.blocks.min(MOST_BLOCKS) as u32;
        let arguments = [&[from, to], &self.numbers()[..]].concat();
        (blocks > 0).then_some(Launch { entry, blocks, threads, arguments })
    }

    fn numbers(self) -> [Argument; 3] {
        [self.len, self.size, self.tiles].map(|number| Argument::U64(number as u64))
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::{Codec, Exact, Half, named, names};
    use hexagram_physical::testing::check_program;
    use std::sync::Arc;

    /// The codecs in blocks that have kernels, in the order of the catalogue.
    const WITH_KERNELS: [&str; 5] = ["min-max8", "e4m3", "e3m0", "int4", "sign"];

    #[test]
    fn every_codec_with_kernels_has_its_programs() {
        let has_programs = |codec: Arc<dyn Codec>| codec.encode_program(1, 0).is_some();
        let in_blocks = |name: &&str| named(&format!("{name}(block=1)")).is_ok_and(has_programs);
        assert_eq!(names().into_iter().filter(in_blocks).collect::<Vec<_>>(), WITH_KERNELS);
    }

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        let sized = ["1", "2048", "2049", "whole"].map(|size| format!("(block={size})"));
        let forms =
            WITH_KERNELS.into_iter().flat_map(|name| sized.iter().map(move |size| format!("{name}{size}")));
        let in_blocks = forms.map(|form| named(&form).unwrap());
        let plain = [Arc::new(Half::F16) as Arc<dyn Codec>, Arc::new(Half::BF16), Arc::new(Exact)];
        for codec in in_blocks.chain(plain) {
            for len in [0, 1, 2048, 100_000, 1 << 40] {
                let programs = [
                    codec.encode_program(len, 0),
                    codec.decode_program(len, None),
                    codec.decode_program(len, Some(0.5)),
                ];
                for program in programs.map(Option::unwrap) {
                    check_program(&program);
                    assert_eq!(program.launches.is_empty(), len == 0, "{}", codec.name());
                }
            }
        }
    }
}
