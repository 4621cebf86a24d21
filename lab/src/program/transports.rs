//! The transports of this build, for help texts and reports.

use hexagram::TransportKind;

/// Returns all transports of this build; the MPI transport only if it is built in.
pub fn built_in() -> Vec<TransportKind> {
    TransportKind::known()
}

/// Returns the MPI transport, if it is built in.
pub fn mpi() -> Option<TransportKind> {
    "mpi".parse().ok()
}

/// Returns the names of the transports, as in `thread, shm, tcp`.
pub fn names() -> String {
    let names: Vec<String> = built_in().iter().map(TransportKind::to_string).collect();
    names.join(", ")
}

/// Returns the help of `--transport`.
pub fn help() -> String {
    format!(
        "How bytes travel: {}; ranks of `thread` are threads of one process. GPU memory may bypass it, by NCCL or by direct access: HEXAGRAM_DEVICE_PATH",
        names()
    )
}
