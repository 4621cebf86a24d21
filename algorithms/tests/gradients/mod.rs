//! Algorithms that exchange gradients or directions in each step: against their rules, step by step, and the bytes of
//! their headers. Each file is a module here.

mod adams;
mod bucket_sizes;
mod by_hand;
mod bytegrad;
mod compressed_allreduce;
mod demo;
mod dgc;
mod ef21;
mod loco;
mod powersgd;
mod qadam;
mod signsgd_vote;
mod topk_ef;
mod zero_one_adam;
