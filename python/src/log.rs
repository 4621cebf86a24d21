//! The warnings of the library, such as of a rank that keeps all others waiting: on standard error, as its programs print
//! them.

use hexagram::physical::world::log_level;
use std::io::{self, IsTerminal};
use std::sync::Once;

/// Prints warnings from here on, or what `HEXAGRAM_LOG` asks for. Does nothing where a listener is set already.
///
/// Called by whatever joins a world, and not as the module is loaded: the program `hexagram` listens for itself.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Joining refuses a level that is none.
        let Ok(level) = log_level() else { return };
        let listener = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .without_time()
            // A closed standard error would be reported by a panic.
            .log_internal_errors(false);
        let _ = listener.try_init();
    });
}
