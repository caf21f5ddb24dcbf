use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whose page it is. Written `vllm`, `sglang`, `llama.cpp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum EngineKind {
    /// vLLM, V1 or V0.
    Vllm,
    /// SGLang: its Prometheus page, or the JSON of `/get_load` or `/v1/loads`.
    Sglang,
    /// llama.cpp's server, which says nothing of its cache.
    LlamaCpp,
}

/// No engine is called so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no engine: vllm, sglang, llama.cpp")]
pub struct UnknownKind(String);

const NAMES: [(&str, EngineKind); 3] = [
    ("vllm", EngineKind::Vllm),
    ("sglang", EngineKind::Sglang),
    ("llama.cpp", EngineKind::LlamaCpp),
];

impl FromStr for EngineKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let known = NAMES.iter().find(|(known, _)| *known == name);
        known
            .map(|&(_, kind)| kind)
            .ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

impl TryFrom<String> for EngineKind {
    type Error = UnknownKind;

    fn try_from(name: String) -> Result<Self, UnknownKind> {
        name.parse()
    }
}

impl From<EngineKind> for String {
    fn from(kind: EngineKind) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llama.cpp",
        })
    }
}
