//! Programs: device code that replaces host code.
//!
//! A program is data: the entries of a module to launch in sequence, with their arguments. A codec returns one from
//! [`Codec::encode_program`] and [`Codec::decode_program`], a kernel from [`Kernel::program`]; the queue of a device
//! that supports it fills in the addresses. Without a program the host does the work, which waits for the device.
//!
//! `physical/cuda/device.cuh` defines the common parts of all modules, and how entries report refusals. The bits of every
//! result are those of the host.
//!
//! [`Codec::encode_program`]: crate::device::codec::Codec::encode_program
//! [`Codec::decode_program`]: crate::device::codec::Codec::decode_program
//! [`Kernel`]: crate::device::Kernel
//! [`Kernel::program`]: crate::device::Kernel::program

#[cfg(feature = "cuda")]
use crate::error::{Error, Result};

/// Code with some entries, which a device loads once. It is a `static`: its address is its identity.
#[derive(Debug)]
pub struct Module {
    /// Name in messages, such as that of its file.
    pub name: &'static str,
    /// Code itself.
    pub code: Code,
}

/// Code of a [`Module`].
#[derive(Debug, Clone, Copy)]
pub enum Code {
    /// PTX text, which the driver alone can load.
    Ptx(&'static str),
    /// PTX text that zlib has compressed.
    Packed(&'static [u8]),
    /// CUDA C++ text, which is compiled when it is first used: that needs NVRTC on the machine.
    Cuda(&'static str),
}

/// Launches that do the work of one host function, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Module of all entries.
    pub module: &'static Module,
    /// Launches, one after the other.
    pub launches: Vec<Launch>,
    /// Size of the scratch memory that the launches share, in bytes. Its initial content is undefined.
    pub scratch: usize,
    /// Description of the error for a message that an entry finds damaged.
    pub damage: &'static str,
    /// Programs that run after this one on the same operands, each with its own scratch memory and refusals: those of
    /// the other tensors of a bucket.
    pub then: Vec<Program>,
}

/// Start of one entry on a one-dimensional grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Name of the entry.
    pub entry: &'static str,
    /// Number of blocks, at least 1.
    pub blocks: u32,
    /// Number of threads of a block, from 1 to 1024.
    pub threads: u32,
    /// Arguments, in the order of the entry's parameters.
    pub arguments: Vec<Argument>,
}

/// Argument of a [`Launch`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// Address of an operand: those that are read come first, then those that are written.
    Operand(usize),
    /// Address of a byte of an operand: the number of the operand, and the offset in bytes.
    OperandAt(usize, usize),
    /// Address of a byte of the scratch memory, by its offset. The memory is aligned to 256 bytes.
    Scratch(usize),
    /// Place of refusals: the parameter is a `Refusing`.
    Refusing,
    /// Place of refusals of a launch whose first element is this one of the operand.
    RefusingAt(u64),
    /// Number of 32 bits.
    U32(u32),
    /// Number of 64 bits.
    U64(u64),
    /// Float of 32 bits.
    F32(f32),
    /// Float of 64 bits.
    F64(f64),
}

impl Launch {
    /// Creates the launch of an entry whose threads iterate over `places` places, in blocks of 256, at most 65,535
    /// blocks.
    pub fn over(entry: &'static str, places: usize, arguments: Vec<Argument>) -> Self {
        let threads = 256;
        let blocks = places.div_ceil(threads).clamp(1, 65_535);
        Launch { entry, blocks: blocks as u32, threads: threads as u32, arguments }
    }
}

impl Argument {
    /// Returns the type of its parameter.
    pub(crate) fn parameter(self) -> PtxParameter<'static> {
        match self {
            Argument::Operand(_) | Argument::OperandAt(..) | Argument::Scratch(_) | Argument::U64(_) => {
                PtxParameter(".u64")
            }
            Argument::U32(_) => PtxParameter(".u32"),
            Argument::F32(_) => PtxParameter(".f32"),
            Argument::F64(_) => PtxParameter(".f64"),
            Argument::Refusing | Argument::RefusingAt(_) => PtxParameter("24"),
        }
    }
}

impl Program {
    /// Creates a program of one launch, without scratch memory, of an entry that decodes nothing.
    pub fn of(module: &'static Module, launch: Launch) -> Self {
        Program::in_turn(module, vec![launch], 0)
    }

    /// Creates a program of several launches, which share `scratch` bytes of memory, and decode nothing.
    pub fn in_turn(module: &'static Module, launches: Vec<Launch>, scratch: usize) -> Self {
        Program { module, launches, scratch, damage: "", then: Vec::new() }
    }

    /// Returns the program for a part of longer operands: operand i begins `starts[i]` bytes later, and its first
    /// element is number `first`.
    #[must_use]
    pub fn starting_at(self, starts: &[usize], first: u64) -> Self {
        let start = |operand: usize| starts.get(operand).copied().unwrap_or_default();
        let moved = |argument| match argument {
            Argument::Operand(operand) => Argument::OperandAt(operand, start(operand)),
            Argument::OperandAt(operand, at) => Argument::OperandAt(operand, at + start(operand)),
            Argument::Refusing => Argument::RefusingAt(first),
            Argument::RefusingAt(at) => Argument::RefusingAt(at + first),
            other => other,
        };
        let launches = self.launches.into_iter().map(|launch| {
            let arguments = launch.arguments.into_iter().map(moved).collect();
            Launch { arguments, ..launch }
        });
        let then = self.then.into_iter().map(|program| program.starting_at(starts, first));
        Program { launches: launches.collect(), then: then.collect(), ..self }
    }
}

/// Modules are equal if they are one.
impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Type of an entry's parameter, as PTX spells it: `.u64`, or the size in bytes of one that is aligned bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtxParameter<'a>(&'a str);

impl<'a> PtxParameter<'a> {
    /// Returns the type in the line of a parameter: `.u64` of `.param .u64 scale_param_0`, and the whole line of an
    /// aligned one except its name.
    fn of(line: &'a str) -> Self {
        let line = line.strip_prefix(".param ").unwrap_or(line);
        PtxParameter(match line.split_once("[") {
            Some((_, size)) => size.trim_end_matches(']'),
            None => line.split_whitespace().next().unwrap_or_default(),
        })
    }

    /// Returns its size in bytes; 0 if it is spelt otherwise.
    #[cfg(feature = "cuda")]
    pub(crate) fn size(self) -> usize {
        let bits = self.0.strip_prefix('.').map(|scalar| scalar.trim_start_matches(char::is_alphabetic));
        let size = bits.map_or_else(|| self.0.parse(), |bits| bits.parse().map(|bits: usize| bits / 8));
        size.unwrap_or(0)
    }
}

/// Returns the types of an entry's parameters.
pub(crate) fn parameters<'a>(text: &'a str, entry: &str) -> Option<Vec<PtxParameter<'a>>> {
    let head = format!(".entry {entry}(");
    let rest = &text[text.find(&head)? + head.len()..];
    let list = &rest[..rest.find(')')?];
    Some(list.split(',').map(str::trim).filter(|line| !line.is_empty()).map(PtxParameter::of).collect())
}

/// Returns the sizes of the parameters of an entry in bytes, from the PTX declarations.
#[cfg(feature = "cuda")]
pub(crate) fn parameter_sizes(text: &str, entry: &str) -> Option<Vec<usize>> {
    parameters(text, entry).map(|parameters| parameters.into_iter().map(PtxParameter::size).collect())
}

/// Returns the text of packed PTX.
///
/// # Errors
/// [`Error::Usage`] if zlib has not compressed a text.
#[cfg(feature = "cuda")]
pub(crate) fn unpack(module: &str, packed: &[u8]) -> Result<String> {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| {
        Error::usage(format!("the PTX of {module} cannot be unpacked"), "compress the text with zlib")
    })
}

/// Returns the names of all entries.
#[cfg(feature = "cuda")]
pub(crate) fn entry_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(".entry ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    static MODULE: Module = Module { name: "none", code: Code::Cuda("") };

    #[test]
    fn a_part_of_a_part_starts_behind_both() {
        let launch = |arguments| Launch { entry: "none", blocks: 1, threads: 1, arguments };
        let before =
            vec![Argument::Operand(0), Argument::Operand(1), Argument::Refusing, Argument::Scratch(4)];
        let then = vec![Program::of(&MODULE, launch(before.clone()))];
        let program = Program { then, ..Program::of(&MODULE, launch(before)) };
        let part = program.starting_at(&[40, 3], 10).starting_at(&[400, 5], 100);
        let at = [Argument::OperandAt(0, 440), Argument::OperandAt(1, 8), Argument::RefusingAt(110)];
        let after = [&at[..], &[Argument::Scratch(4)]].concat();
        assert_eq!(part.launches[0].arguments, after);
        assert_eq!(part.then[0].launches[0].arguments, after);
    }
}
