//! Compiles kernels for every instruction set, and picks one as the program runs.
//!
//! AVX2 and AVX-512 are chosen at run time; everything else, NEON among it, is what the compiler makes of the portable
//! form for the target that it builds for.

use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};
use std::sync::LazyLock;

/// The instruction set that kernels run with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Level {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Returns the best instruction set of this machine.
    pub(super) fn current() -> Level {
        #[cfg(test)]
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

/// `dispatched!(pub fn name(x: &[f32]) -> f32 = kernel);` makes `name` the best form of
/// `#[inline(always)] fn kernel<S: Set>(set: S, x: &[f32]) -> f32` for the machine at hand.
macro_rules! dispatched {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? = $kernel:path) => {
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt")]
            fn avx2(set: $crate::device::kernels::x86::Avx2, $($arg: $type),*) $(-> $out)? {
                $kernel(set, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512(set: $crate::device::kernels::x86::Avx512, $($arg: $type),*) $(-> $out)? {
                $kernel(set, $($arg),*)
            }
            match $crate::device::kernels::dispatch::Level::current() {
                $crate::device::kernels::dispatch::Level::Portable(set) => $kernel(set, $($arg),*),
                // SAFETY: the set's value exists only where the machine has its instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::device::kernels::dispatch::Level::Avx2(set) => unsafe { avx2(set, $($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::device::kernels::dispatch::Level::Avx512(set) => unsafe { avx512(set, $($arg),*) },
            }
        }
    };
}

/// Does some work with the instructions of this machine, as far as the compiler inlines it: for loops over elements of
/// layers above. The bits are the same whichever they are.
#[inline]
pub fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,popcnt")]
    fn avx2<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    match Level::current() {
        // SAFETY: the levels' values exist only where the machine has their instructions, of which AVX-512 has AVX2's.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) | Level::Avx512(_) => unsafe { avx2(work) },
        Level::Portable(_) => work(),
    }
}

/// Runs `check` once with every instruction set of this machine.
#[cfg(test)]
pub(super) fn each_set(mut check: impl FnMut(&str)) {
    for level in Level::all() {
        forced::LEVEL.set(Some(level));
        check(&format!("{level:?}"));
    }
    forced::LEVEL.set(None);
}

#[cfg(test)]
mod forced {
    std::thread_local! {
        pub(super) static LEVEL: std::cell::Cell<Option<super::Level>> = const { std::cell::Cell::new(None) };
    }
}
