//! The warnings of the library, such as of a straggler: on standard error, like those of its programs.

use hexagram::physical::world::log_level;
use std::io::{self, IsTerminal};
use std::sync::Once;

/// Prints warnings from now on, at the level in `HEXAGRAM_LOG`. Has no effect if a subscriber is already set.
///
/// Called when a world is joined, not when the module is loaded: the program `hexagram` sets its own subscriber.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Joining refuses an invalid level.
        let Ok(level) = log_level() else { return };
        let listener = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .without_time()
            // Otherwise a closed standard error would cause a panic.
            .log_internal_errors(false);
        let _ = listener.try_init();
    });
}
