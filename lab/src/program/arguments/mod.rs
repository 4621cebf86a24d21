//! Parts of the command line that several programs share, and checks of them before any rank starts.
//!
//! | file | content |
//! |---|---|
//! | `names` | spelling of algorithms, their help, and the folder names of their runs |
//! | `optimizer_args` | optimizer and learning rate |
//! | `train_args` | task, data, ranks and steps of a training |
//! | `periods` | numbers of steps that are whole periods of an algorithm |
//! | `preflight` | errors found before ranks start |

mod names;
pub(super) mod optimizer_args;
#[cfg(feature = "programs")]
mod periods;
mod preflight;
#[cfg(feature = "programs")]
mod train_args;

#[cfg(feature = "programs")]
pub(super) use names::ALL;
pub use names::{ChosenAlgorithm, folder_name, information};
#[cfg(feature = "programs")]
pub(super) use periods::whole_periods;
pub use preflight::rehearse;
#[cfg(feature = "programs")]
pub use train_args::Setting;
