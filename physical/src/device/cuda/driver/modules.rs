//! Modules of kernels that are loaded once, and their entries.

use super::handle::{FunctionHandle, ModuleHandle};
use super::nvrtc;
use super::status::is_of_code;
use crate::device::cuda::gpu::Gpu;
use crate::device::operations::program::{
    Code, Launch, Module, Program, entry_names, parameter_sizes, unpack,
};
use crate::error::{Error, Result};
use crate::waiting::lock::lock;
use cudarc::driver::sys::{self, CUjit_option, CUresult};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

/// Size of the buffer for the driver's reasons to refuse a module, in bytes.
const LOG: usize = 4096;

/// A module in the driver, with its entries.
struct InDriver {
    module: ModuleHandle,
    text: Cow<'static, str>,
    /// All kernels declared in its text, which are loaded with it. Otherwise the driver would load each at its first
    /// launch, and may then wait for all work of the device. Kernels found only by name are added on first use.
    entries: Mutex<HashMap<String, ModuleEntry>>,
}

/// An entry of a module.
struct ModuleEntry {
    function: FunctionHandle,
    /// Sizes of its parameters, in bytes; `None` if the text does not declare them, like that of the fake compiler.
    parameters: Option<Vec<usize>>,
}

impl ModuleEntry {
    /// Returns the function if it accepts the arguments of a launch: the driver would otherwise read past them.
    fn taking(&self, launch: &Launch) -> Result<FunctionHandle> {
        let sizes = || launch.arguments.iter().map(|argument| argument.parameter().size());
        if self.parameters.as_ref().is_none_or(|parameters| sizes().eq(parameters.iter().copied())) {
            return Ok(self.function);
        }
        let what = format!("{} does not accept the arguments {:?}", launch.entry, launch.arguments);
        Err(Error::usage(what, "correct its program: testing::check_program compares them"))
    }
}

impl InDriver {
    /// Returns the function of a launch.
    fn function(&self, gpu: &Gpu, module: &Module, launch: &Launch) -> Result<FunctionHandle> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(launch.entry) {
            return entry.taking(launch);
        }
        let entry = self.find(gpu, module, launch.entry)?;
        entries.entry(launch.entry.to_owned()).or_insert(entry).taking(launch)
    }

    /// Asks the driver for an entry, where the context is current.
    fn find(&self, gpu: &Gpu, module: &Module, entry: &str) -> Result<ModuleEntry> {
        let name = format!("{entry}\0");
        let mut function = FunctionHandle::NONE;
        // SAFETY: the pointer is valid for a write of one handle, the module is loaded, and the name ends with 0.
        let status =
            unsafe { sys::cuModuleGetFunction(&mut function.0, self.module.0, name.as_ptr().cast()) };
        gpu.expect(status, &format!("find the kernel {entry} of {}", module.name))?;
        Ok(ModuleEntry { function, parameters: parameter_sizes(&self.text, entry) })
    }
}

/// Place of one module: empty until it is loaded, or until the driver has refused it for good. The loading thread
/// holds the lock.
type ModuleSlot = Mutex<Option<Result<Arc<InDriver>>>>;

/// Modules of a device by their addresses.
#[derive(Default)]
pub(crate) struct Loaded(Mutex<HashMap<usize, Arc<ModuleSlot>>>);

impl Loaded {
    /// Returns true if a module is loaded, and its place is not locked.
    fn has(&self, module: &'static Module) -> bool {
        let slot = lock(&self.0).get(&std::ptr::from_ref(module).addr()).cloned();
        slot.is_some_and(|slot| slot.try_lock().is_ok_and(|slot| matches!(&*slot, Some(Ok(_)))))
    }

    /// Returns a module, which is loaded now if it has not been yet, where the context is current. That may take seconds,
    /// and wait for all work of the device.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses, [`Error::Setup`] and [`Error::Usage`] if the module is source that
    /// cannot be compiled.
    fn module(&self, gpu: &Gpu, module: &'static Module) -> Result<Arc<InDriver>> {
        let slot = Arc::clone(lock(&self.0).entry(std::ptr::from_ref(module).addr()).or_default());
        let mut slot = lock(&slot);
        if let Some(known) = &*slot {
            return known.clone();
        }
        match load(gpu, module) {
            Ok(loaded) => slot.insert(Ok(Arc::new(loaded))).clone(),
            Err(NotLoaded { error, may_pass: true }) => Err(*error),
            Err(NotLoaded { error, may_pass: false }) => slot.insert(Err(*error)).clone(),
        }
    }

    /// Drops all modules, where the context is current and nothing runs.
    pub(crate) fn unload(&self) {
        for slot in lock(&self.0).drain().map(|(_, slot)| slot) {
            if let Some(Ok(loaded)) = lock(&slot).take() {
                // SAFETY: the driver loaded it, and none of its kernels runs.
                unsafe { sys::cuModuleUnload(loaded.module.0) };
            }
        }
    }
}

/// Failure to load a module.
struct NotLoaded {
    error: Box<Error>,
    /// True if another attempt may succeed.
    may_pass: bool,
}

impl From<Error> for NotLoaded {
    fn from(error: Error) -> Self {
        NotLoaded { error: error.into(), may_pass: false }
    }
}

/// Loads a module with all its entries, where the context is current.
fn load(gpu: &Gpu, module: &'static Module) -> std::result::Result<InDriver, NotLoaded> {
    let text = match module.code {
        Code::Ptx(text) => Cow::Borrowed(text),
        Code::Packed(packed) => Cow::Owned(unpack(module.name, packed)?),
        Code::Cuda(text) => Cow::Owned(nvrtc::compile(module.name, text, gpu.about.capability)?),
    };
    let mut loaded = load_text(&text);
    if loaded.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        gpu.free_kept();
        loaded = load_text(&text);
    }
    let (status, handle, reason) = loaded;
    let may_pass = !is_of_code(status);
    gpu.expect(status, &format!("load the kernels of {}{reason}", module.name))
        .map_err(|error| NotLoaded { error: error.into(), may_pass })?;
    let loaded = InDriver { module: handle, text, entries: Mutex::default() };
    for name in entry_names(&loaded.text) {
        let entry = loaded.find(gpu, module, name)?;
        lock(&loaded.entries).insert(name.to_owned(), entry);
    }
    Ok(loaded)
}

/// Loads a module's text into the driver. Returns the status, with the driver's reason in brackets if it has one.
fn load_text(text: &str) -> (CUresult, ModuleHandle, String) {
    let ended = format!("{text}\0");
    let mut handle = ModuleHandle::NONE;
    let mut log = vec![0u8; LOG];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes numbers in place of pointers, and the log's last byte stays 0.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG - 1)];
    let text = ended.as_ptr().cast();
    // SAFETY: the pointer is valid for a write of one handle, the text ends with 0, and each option has the value that it asks for.
    let status =
        unsafe { sys::cuModuleLoadDataEx(&mut handle.0, text, 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
    let reason = log.lines().next().map_or(String::new(), |line| format!(" ({line})"));
    (status, handle, reason)
}

impl Gpu {
    /// Loads the modules of a program with all their entries, unless they are loaded already.
    ///
    /// # Errors
    /// As [`Loaded::module`].
    pub(crate) fn prepare(&self, program: &Program) -> Result<()> {
        self.prepare_module(program.module)?;
        program.then.iter().try_for_each(|program| self.prepare(program))
    }

    /// Loads a module with all its entries, unless it is loaded already.
    ///
    /// # Errors
    /// As [`Loaded::module`].
    pub(crate) fn prepare_module(&self, module: &'static Module) -> Result<()> {
        if self.loaded.has(module) {
            return Ok(());
        }
        let _current = self.enter()?;
        self.loaded.module(self, module).map(drop)
    }

    /// Returns the function of a launch, where the context is current.
    ///
    /// # Errors
    /// As [`Loaded::module`]; [`Error::Usage`] if the kernel has other parameters.
    pub(crate) fn function(&self, module: &'static Module, launch: &Launch) -> Result<FunctionHandle> {
        self.loaded.module(self, module)?.function(self, module, launch)
    }
}
