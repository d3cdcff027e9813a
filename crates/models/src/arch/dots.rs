//! dots.llm1: Qwen 3's attention, DeepSeek V3's experts.

use model_spec::ConfigError;

use super::deepseek::{NAMING, Version, feed_forwards};
use super::parts::Sizes;
use super::{Blueprint, Folder, llama};

pub(super) fn dots(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let mut spec = llama::dots(folder)?.spec;
    let version = Version { renormalise: false, ..Version::V3 };
    let parts = feed_forwards(config, &Sizes::read(config)?, &version)?;
    spec.layers.iter_mut().zip(parts).for_each(|(layer, part)| layer.feed_forward = part);
    Ok(Blueprint { spec, names: NAMING.names() })
}
