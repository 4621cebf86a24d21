//! Algorithms whose ranks do not wait for each other: their invariants in every order, and the bytes of their headers.
//! Each file is a module here.

mod ad_psgd;
mod async_model_average;
mod compressed_asynchronous;
mod laggard;
#[cfg(feature = "sim")]
mod orders;
mod slow_rank_measured;
mod ssp;
