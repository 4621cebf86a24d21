//! Programs: what a device with compiled kernels runs in place of host code. Open this to bring a codec or a [`Kernel`]
//! of your own to a GPU.
//!
//! A program is data: which entries of a module are launched one after the other, with which arguments. A codec returns
//! one from [`Codec::encode_program`] and [`Codec::decode_program`], a kernel from [`Kernel::program`]; the queue of a
//! device that can run it fills in the addresses. Without one the host does the work, which waits for the device.
//!
//! What every module may rely on, and how entries report what they refuse, is in `cuda/device.cuh`. The bits of every
//! result are those of the host.
//!
//! [`Codec::encode_program`]: crate::codec::Codec::encode_program
//! [`Codec::decode_program`]: crate::codec::Codec::decode_program
//! [`Kernel`]: super::Kernel
//! [`Kernel::program`]: super::Kernel::program

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
    /// Size of the memory that the launches share beside their operands, in bytes. It holds anything at the start.
    pub scratch: usize,
    /// Description of what is wrong with a message that an entry finds damaged.
    pub damage: &'static str,
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
    /// Address of a byte of the scratch memory, by its offset. The memory is aligned to 256 bytes.
    Scratch(usize),
    /// Place of refusals: the parameter is a `Refusing`.
    Refusing,
    /// Number of 32 bits.
    U32(u32),
    /// Number of 64 bits.
    U64(u64),
    /// Float of 32 bits.
    F32(f32),
    /// Float of 64 bits.
    F64(f64),
}

impl Program {
    /// Creates a program of one launch, without scratch memory, of an entry that decodes nothing.
    pub fn of(module: &'static Module, launch: Launch) -> Self {
        Program { module, launches: vec![launch], scratch: 0, damage: "" }
    }
}

/// Modules are equal if they are one.
impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
