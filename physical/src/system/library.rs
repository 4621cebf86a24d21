//! Libraries that are loaded at run time, and stay loaded: PMIx and those of CUDA, which not every machine has.
//!
//! The library is not linked, so that a program runs on any machine, and reports a missing library in one line.

use crate::error::{Error, Result};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// Declares a table of functions of a library, and loads them: the name of the table, the return type, and each function
/// by its name in the library, with the types of its parameters.
macro_rules! functions {
    ($(#[$about:meta])* struct $table:ident: $result:ty; $($name:ident($($argument:ty),*);)*) => {
        $(#[$about])*
        #[allow(non_snake_case, reason = "these are the names in the library")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks up every function.
            fn of(library: &$crate::system::library::Library) -> $crate::error::Result<Self> {
                Ok($table {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> $result;
                        let function = library.function(concat!(stringify!($name), "\0"))?;
                        // SAFETY: the library's function of this name has these parameters and this result.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(function) }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// A library that was loaded when the program ran, and stays.
pub(crate) struct Library {
    name: &'static str,
    handle: *mut c_void,
    remedy: &'static str,
}

impl Library {
    /// Loads the first library that exists.
    ///
    /// # Errors
    /// [`Error::Setup`] that names the first one, with the loader's reason.
    pub(crate) fn open(names: &[&'static str], remedy: &'static str) -> Result<Self> {
        let mut reason = None;
        for name in names {
            let text = format!("{name}\0");
            // SAFETY: the text ends with 0. The initialisation code of the library is beyond our control.
            let handle = unsafe { libc::dlopen(text.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { name, handle, remedy });
            }
            reason.get_or_insert_with(last_error);
        }
        let first = names.first().copied().unwrap_or_default();
        let reason = reason.unwrap_or_default();
        // The loader's reason begins with the name.
        let reason = reason.strip_prefix(&format!("{first}: ")).unwrap_or(&reason);
        Err(Error::setup(format!("{first} cannot be loaded: {reason}"), remedy))
    }

    /// Returns the address of a function, whose name ends with 0.
    ///
    /// # Errors
    /// [`Error::Setup`] that names the library and the function, if that is missing.
    pub(crate) fn function(&self, name: &str) -> Result<*mut c_void> {
        let text = name.trim_end_matches('\0');
        let address = match name.len() == text.len() {
            true => null_mut(),
            // SAFETY: the library is loaded, and the name ends with 0.
            false => unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) },
        };
        if address.is_null() {
            return Err(Error::setup(format!("{} is too old: it has no {text}", self.name), self.remedy));
        }
        Ok(address)
    }
}

/// Returns the reason of the loader for its last failure on this thread.
fn last_error() -> String {
    // SAFETY: it takes nothing, and returns null or a text that ends with 0 and is valid until its next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
