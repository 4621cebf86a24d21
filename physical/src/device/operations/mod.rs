//! Arithmetic of devices: the operations of views, user kernels, and programs of devices with compiled kernels.

pub(super) mod apply;
pub(super) mod arithmetic;
pub(super) mod cross_device;
pub(super) mod kernel;
pub mod measure;
pub mod program;
pub(super) mod reduce;
pub mod sums;
pub mod unequal;
pub(super) mod weighted;
