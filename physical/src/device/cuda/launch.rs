//! Programs on a stream: modules that are loaded once, and launches with their arguments filled in. Open this to see
//! what becomes of a [`Program`].

use super::gpu::{Gpu, lock};
use super::library::Libcuda;
use super::memory::Room;
use super::nvrtc;
use super::stream::{CudaStream, Tail};
use super::types::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CUfunction, CUmodule};
use crate::device::program::{Argument, Code, Launch, Module, Program, parameter_sizes};
use crate::error::{Error, Result};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

/// Room for the driver's reasons to refuse a module, in bytes.
const LOG: usize = 4096;

/// A module in the driver, and its entries as they are asked for.
struct InDriver {
    module: CUmodule,
    text: Cow<'static, str>,
    entries: HashMap<&'static str, Entry>,
}

/// An entry of a module.
struct Entry {
    function: CUfunction,
    /// Sizes of its parameters, in bytes; `None` if the text does not tell, as that of the fake compiler.
    parameters: Option<Vec<usize>>,
}

impl Entry {
    /// Returns the function if it takes the arguments of a launch: the driver would read what is not there.
    fn taking(&self, launch: &Launch) -> Result<CUfunction> {
        let sizes = || launch.arguments.iter().map(|argument| argument.size());
        if self.parameters.as_ref().is_none_or(|parameters| sizes().eq(parameters.iter().copied())) {
            return Ok(self.function);
        }
        let what = format!("{} was given {:?}, which are not its parameters", launch.entry, launch.arguments);
        Err(Error::usage(what, "mend its program: testing::check_program compares them"))
    }
}

/// Modules of a device by their addresses; those that could not be loaded, with the reason.
#[derive(Default)]
pub(super) struct Loaded(Mutex<HashMap<usize, Result<InDriver>>>);

impl Loaded {
    /// Returns the function of a launch, whose module is loaded now if it has not been yet.
    fn function(&self, gpu: &Gpu, module: &'static Module, launch: &Launch) -> Result<CUfunction> {
        let mut modules = lock(&self.0);
        let loaded = modules.entry(std::ptr::from_ref(module).addr()).or_insert_with(|| load(gpu, module));
        let loaded = loaded.as_mut().map_err(|error| error.clone())?;
        if let Some(entry) = loaded.entries.get(launch.entry) {
            return entry.taking(launch);
        }
        let name = format!("{}\0", launch.entry);
        let mut function = CUfunction::NONE;
        // SAFETY: the place is there for one handle, the module is loaded, and the name ends with 0.
        let status =
            unsafe { (gpu.driver.cuModuleGetFunction)(&mut function, loaded.module, name.as_ptr().cast()) };
        gpu.expect(status, &format!("find the kernel {} of {}", launch.entry, module.name))?;
        let parameters = parameter_sizes(&loaded.text, launch.entry);
        let entry = Entry { function, parameters };
        loaded.entries.entry(launch.entry).or_insert(entry).taking(launch)
    }

    /// Drops all modules, where the context is current and nothing runs.
    pub(super) fn unload(&self, driver: &Libcuda) {
        for loaded in lock(&self.0).drain().filter_map(|(_, loaded)| loaded.ok()) {
            // SAFETY: the driver loaded it, and none of its kernels runs.
            unsafe { (driver.cuModuleUnload)(loaded.module) };
        }
    }
}

/// Loads a module where the context is current.
fn load(gpu: &Gpu, module: &'static Module) -> Result<InDriver> {
    let ptx = match module.code {
        Code::Ptx(text) => Cow::Borrowed(text),
        Code::Cuda(text) => Cow::Owned(nvrtc::compile(module.name, text, gpu.about.capability)?),
    };
    let ended = format!("{ptx}\0");
    let mut handle = CUmodule::NONE;
    let mut log = vec![0u8; LOG];
    let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes numbers in place of pointers, and the log's last byte stays 0.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG - 1)];
    let text = ended.as_ptr().cast();
    // SAFETY: the place is there for one handle, the text ends with 0, and each option has the value that it asks for.
    let status = unsafe {
        (gpu.driver.cuModuleLoadDataEx)(&mut handle, text, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
    let reason = log.lines().next().map_or(String::new(), |line| format!(" ({line})"));
    gpu.expect(status, &format!("load the kernels of {}{reason}", module.name))?;
    Ok(InDriver { module: handle, text: ptx, entries: HashMap::new() })
}

/// Argument of a launch as the driver copies it: the largest is what a kernel refuses with.
type Value = [u64; 3];

/// Operands of a program as its launches need them.
#[derive(Default)]
pub(super) struct Filled<'a> {
    /// Addresses of what is read, then of what is written.
    pub(super) operands: &'a [u64],
    /// Name of whose program it is.
    pub(super) codec: &'a str,
    /// Number of elements of the memory before those of the first operand.
    pub(super) before: u64,
}

impl CudaStream {
    /// Enqueues the launches of a program, where the context is current.
    pub(super) fn launch(&self, tail: &mut Tail, program: &Program, filled: &Filled<'_>) -> Result<()> {
        let scratch = self.scratch(tail, program.scratch)?;
        for launch in &program.launches {
            let values = launch.arguments.iter().map(|argument| match *argument {
                Argument::Operand(number) => filled.operand(launch, number, 0),
                Argument::OperandAt(number, bytes) => filled.operand(launch, number, bytes as u64),
                Argument::Scratch(offset) => Ok([scratch + offset as u64, 0, 0]),
                Argument::Refusing => self.refusing(tail, filled.codec, program.damage, filled.before),
                Argument::RefusingAt(first) => {
                    self.refusing(tail, filled.codec, program.damage, filled.before + first)
                }
                Argument::U32(number) => Ok([number.into(), 0, 0]),
                Argument::U64(number) => Ok([number, 0, 0]),
                Argument::F32(number) => Ok([number.to_bits().into(), 0, 0]),
                Argument::F64(number) => Ok([number.to_bits(), 0, 0]),
            });
            let values = values.collect::<Result<Vec<Value>>>()?;
            self.start(program.module, launch, values)?;
        }
        program.then.iter().try_for_each(|program| self.launch(tail, program, filled))
    }

    fn start(&self, module: &'static Module, launch: &Launch, mut values: Vec<Value>) -> Result<()> {
        let gpu = &self.gpu;
        let function = gpu.loaded.function(gpu, module, launch)?;
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let Launch { blocks, threads, .. } = *launch;
        // SAFETY: the function and the stream are there. Each parameter has a place with as many bytes as it has, the
        // lowest first, as `taking` has checked. What kernels do with addresses is theirs to answer for.
        let status = unsafe {
            (gpu.driver.cuLaunchKernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.handle,
                places.as_mut_ptr(),
                null_mut(),
            )
        };
        gpu.expect(status, &format!("launch {}", launch.entry))
    }

    /// Returns the address of scratch memory, which work that was enqueued before may still use.
    fn scratch(&self, tail: &mut Tail, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        if let Some(room) = tail.scratch.as_ref().filter(|room| room.bytes >= bytes) {
            return Ok(room.address);
        }
        let room = Room::new(&self.gpu, self.handle, bytes)?;
        let address = room.address;
        if let Some(smaller) = tail.scratch.replace(room) {
            tail.hold(smaller);
        }
        Ok(address)
    }
}

impl Filled<'_> {
    fn operand(&self, launch: &Launch, number: usize, bytes: u64) -> Result<Value> {
        let address = self.operands.get(number).ok_or_else(|| {
            let what = format!("{} asks for operand {number} of {}", launch.entry, self.operands.len());
            Error::usage(what, "mend its program")
        })?;
        Ok([address + bytes, 0, 0])
    }
}
