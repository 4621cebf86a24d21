//! Compiles kernels for every instruction set, and selects one at run time.
//!
//! AVX2 and AVX-512 are selected at run time. All others, including NEON, are compiled from the portable form for the
//! target of the build.

use super::sets::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::sets::x86::{Avx2, Avx512};
use std::sync::LazyLock;

/// The instruction set that kernels run with.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    /// The instructions of the build target.
    Portable(Portable),
    /// AVX2, for machines since 2013.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512, for servers since 2017.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Returns the best instruction set of this machine.
    pub fn current() -> Level {
        #[cfg(any(test, feature = "testing"))]
        if let Some(level) = forced::LEVEL.get() {
            return level;
        }
        static BEST: LazyLock<Level> = LazyLock::new(|| Level::all().swap_remove(0));
        *BEST
    }

    /// Returns all instruction sets of this machine, the best first.
    fn all() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        let best = [Avx512::detect().map(Level::Avx512), Avx2::detect().map(Level::Avx2)];
        #[cfg(not(target_arch = "x86_64"))]
        let best: [Option<Level>; 0] = [];
        best.into_iter().flatten().chain([Level::Portable(Portable)]).collect()
    }
}

/// `dispatched!(pub fn name(x: &[f32]) -> f32 = kernel);` defines `name` as the best form of `#[inline(always)] fn
/// kernel<S: Set>(set: S, x: &[f32]) -> f32` for the machine.
#[macro_export]
macro_rules! dispatched {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? = $kernel:path) => {
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt")]
            fn avx2(set: $crate::device::kernels::sets::x86::Avx2, $($arg: $type),*) $(-> $out)? {
                $kernel(set, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512(set: $crate::device::kernels::sets::x86::Avx512, $($arg: $type),*) $(-> $out)? {
                $kernel(set, $($arg),*)
            }
            match $crate::device::kernels::dispatch::Level::current() {
                $crate::device::kernels::dispatch::Level::Portable(set) => $kernel(set, $($arg),*),
                // SAFETY: a value of the set exists only if the machine has its instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::device::kernels::dispatch::Level::Avx2(set) => unsafe { avx2(set, $($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::device::kernels::dispatch::Level::Avx512(set) => unsafe { avx512(set, $($arg),*) },
            }
        }
    };
}

/// Runs `work` with the instruction set of this machine, as far as the compiler inlines it, for loops in the layers
/// above. The bits of the result do not depend on it.
#[inline]
pub fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt")]
    fn avx2<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    match Level::current() {
        // SAFETY: values of the levels exist only if the machine has their instructions; AVX-512 includes AVX2.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) | Level::Avx512(_) => unsafe { avx2(work) },
        Level::Portable(_) => work(),
    }
}

/// Runs `check` once with every instruction set of this machine.
#[cfg(any(test, feature = "testing"))]
pub fn each_set(mut check: impl FnMut(&str)) {
    for level in Level::all() {
        forced::LEVEL.set(Some(level));
        check(&format!("{level:?}"));
    }
    forced::LEVEL.set(None);
}

#[cfg(any(test, feature = "testing"))]
mod forced {
    std::thread_local! {
        pub(super) static LEVEL: std::cell::Cell<Option<super::Level>> = const { std::cell::Cell::new(None) };
    }
}
