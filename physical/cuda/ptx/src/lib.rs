//! hexagram's kernels for NVIDIA GPUs: PTX text, compressed with zlib. `physical/cuda/make-ptx` makes each file from the `.cu` of
//! the same name. A file that no program names is not linked.
#![no_std]

/// Defines a constant for each file.
macro_rules! files {
    ($($constant:ident $name:literal)*) => {
        $(
            #[doc = concat!("Kernels of `", $name, ".cu`.")]
            pub const $constant: &[u8] = include_bytes!(concat!("../", $name, ".ptx.zz"));
        )*
    };
}

files! {
    ADAM "adam"
    ADAMW "adamw"
    BALLOT "ballot"
    COMBINE "combine"
    DGC "dgc"
    E3M0 "e3m0"
    E4M3 "e4m3"
    EXACT "exact"
    HALF "half"
    INT4 "int4"
    LAMB "lamb"
    LARS "lars"
    LION "lion"
    MEASURE "measure"
    MIN_MAX "min_max"
    MOMENT "moment"
    MUON "muon"
    QSGD "qsgd"
    RANDOM_K "random_k"
    REDUCE "reduce"
    REFUSAL "refusal"
    SGD "sgd"
    SIGN "sign"
    SLOWMO "slowmo"
    TOP_K "top_k"
    UNEQUAL "unequal"
    WEIGHTED "weighted"
    WHOLE "whole"
}
