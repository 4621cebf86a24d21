//! Sync points: the places in this library at which a stream is made to wait, by name.
//!
//! A wait that is missing shows on few machines, and on those rarely. So each place has a name, by which the fake driver of the
//! tests omits the wait there, and `missing_sync` has a program for each place that fails without the wait.

/// Declares the places.
macro_rules! places {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// A place at which a stream is made to wait.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs have paths and foreign streams"))]
        pub(crate) enum SyncPoint {
            $($(#[$about])* $name,)*
            /// A place in a test.
            #[cfg(all(test, feature = "cuda"))]
            OfTest,
        }

        #[cfg(all(test, feature = "cuda"))]
        impl SyncPoint {
            /// All places but those of tests.
            pub(crate) const ALL: &[SyncPoint] = &[$(SyncPoint::$name),*];

            /// Returns the name, which ends with 0.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(SyncPoint::$name => concat!(stringify!($name), "\0"),)*
                    SyncPoint::OfTest => "OfTest\0",
                }
            }
        }
    };
}

places! {
    /// A queue writes memory that other queues still read.
    BeforeWrite,
    /// A queue reads memory that another queue still writes.
    BeforeRead,
    /// A bell rings once an event has happened. Without the wait it rings immediately: the woken thread finds no result, and is
    /// not woken again.
    Bell,
    /// A queue continues after the stream of another library.
    BehindForeign,
    /// The stream of another library continues after a queue.
    ForeignBehind,
    /// A collective over `ipc` reads contributions.
    IpcEntered,
    /// An all-reduce over `ipc` reads chunks that others have combined.
    IpcCombined,
    /// Work after a collective over `ipc` may write memory that other ranks read in the collective.
    IpcRead,
    /// A message over `ipc` is taken.
    IpcMessage,
    /// An operation over `ipc` follows an operation of a different queue.
    IpcTurns,
    /// NCCL writes memory that other queues still read.
    NcclBeforeWrite,
    /// NCCL reads the input of a collective, which belongs to a different queue than the result.
    NcclInput,
    /// NCCL reads or writes the result of a collective.
    NcclOutput,
    /// A queue continues after NCCL.
    NcclDone,
}

/// Runs `wait`, which makes streams wait, at a place. Only the tests use the name of the place.
#[inline]
pub(crate) fn at<R>(place: SyncPoint, wait: impl FnOnce() -> R) -> R {
    #[cfg(all(test, feature = "cuda"))]
    let _named = crate::device_paths::missing_sync::Named::new(place);
    #[cfg(not(all(test, feature = "cuda")))]
    let _ = place;
    wait()
}
