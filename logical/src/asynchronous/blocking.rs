//! The waiting calls of asynchronous primitives, as blocking calls. Calls that return a [`Pending`](super::Pending)
//! have their blocking form there.

use super::{Background, Clock, PairExchange, Pulled, Server, Service, Window};
use crate::encoding::State;
use crate::runtime::block_on;
use crate::{Buffer, Result};
use std::ops::Range;

macro_rules! blocking {
    ($name:ident of $of:ident $by:tt { $($call:ident $arguments:tt -> $returned:ty;)* }) => {
        blocking!(@holding $name $of $by);

        impl $name<'_> {
            $(blocking!(@call $of $by $call $arguments $returned);)*
        }
    };
    (@holding $name:ident $of:ident [$($by:tt)*]) => {
        #[doc = concat!("Calls of a [`", stringify!($of), "`] that block on the caller's thread.")]
        pub struct $name<'a>(&'a $($by)* $of);

        impl $of {
            /// Returns the blocking form of the waiting calls.
            pub fn blocking(&$($by)* self) -> $name<'_> {
                $name(self)
            }
        }
    };
    (@call $of:ident [$($by:tt)*] $call:ident($($argument:ident: $type:ty),*) $returned:ty) => {
        #[doc = concat!("Waits for [`", stringify!($of), "::", stringify!($call), "`].\n\n# Errors\nAs that.")]
        pub fn $call(&$($by)* self, $($argument: $type),*) -> Result<$returned> {
            block_on(self.0.$call($($argument),*))
        }
    };
}

blocking! { BlockingWindow of Window [] {
    update(self_weight: f64, weights: &[(usize, f64)], reset: bool) -> ();
    collect() -> ();
    load(into: &mut Buffer) -> ();
    estimate(into: &mut Buffer) -> ();
    load_neighbour(of: usize, into: &mut Buffer) -> ();
    store(from: &Buffer) -> ();
    add(weight: f64, from: &Buffer) -> ();
    save() -> Vec<(String, State)>;
    restore(states: impl IntoIterator<Item = (String, State)>) -> ();
} }

blocking! { BlockingPairExchange of PairExchange [] {
    load(into: &mut Buffer) -> ();
    add(weight: f64, from: &Buffer) -> ();
    save() -> Vec<(String, State)>;
    restore(states: impl IntoIterator<Item = (String, State)>) -> ();
} }

blocking! { BlockingServer of Server [mut] {
    push(range: Range<usize>, delta: &Buffer) -> ();
    pull(range: Range<usize>, into: &mut Buffer) -> Pulled;
    pull_cached(range: Range<usize>, into: &mut Buffer) -> Pulled;
    shard() -> (Range<usize>, Vec<f32>);
} }

blocking! { BlockingClock of Clock [] {
    wait() -> u64;
    settle() -> u64;
} }

blocking! { BlockingService of Service [] {
    close() -> ();
} }

blocking! { BlockingBackground of Background [mut] {
    abort() -> ();
} }
