//! Brings what is needed of a model's revision into the cache, as one snapshot.

use std::path::PathBuf;

use futures::{StreamExt, TryStreamExt, stream};
use model_files::{FilesError, Pick, shards_of};

use crate::{
    Need, Progress, SourceError,
    cache::Cache,
    download,
    folder::{self, Wanted},
    hub::Hub,
};

/// Files downloaded at the same time.
const PARALLEL: usize = 4;

/// Downloads what is needed of a model and returns its snapshot folder.
pub(crate) async fn download(
    hub: &Hub<'_>,
    id: &str,
    wanted: Wanted<'_>,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<PathBuf, SourceError> {
    let listed = hub.revision(id).await?;
    let (commit, names) = (listed.sha.clone(), listed.names());
    let revision = Revision { hub, id, commit: &commit, cache, progress };
    cache.create(&commit)?;
    let snapshot = cache.snapshot(&commit);
    let first = if wanted.need == Need::Adapter { folder::adapter_files(&names) } else { folder::small_files(&names) };
    revision.fetch_all(first).await?;
    if matches!(wanted.need, Need::Everything | Need::NoWeights)
        && let Some(check) = hub.options.check
    {
        check(&snapshot).map_err(|reason| SourceError::NotServed { id: id.to_owned(), reason })?;
    }
    if wanted.need == Need::Everything {
        let weights = match wanted.pick(&names) {
            Pick::Files(_, files) => files,
            Pick::Index(_, index) => {
                revision.fetch_all(vec![&index]).await?;
                let file = snapshot.join(&index);
                let text = std::fs::read(&file).map_err(|source| SourceError::io("read", &file, source))?;
                let shards = shards_of(&text).map_err(|reason| FilesError::Damaged { file, reason })?;
                shards.into_iter().collect()
            }
            Pick::OneOf(files) => return Err(SourceError::SeveralGguf { id: id.to_owned(), files }),
            Pick::Nothing => return Err(no_weights(id, wanted, &names)),
        };
        let weights = weights.into_iter().chain(folder::module_weights(&names)).collect::<Vec<_>>();
        revision.fetch_all(weights.iter().map(String::as_str).collect()).await?;
    }
    wanted.check(&snapshot)?;
    // Last, so that a branch never points to a snapshot that is not complete.
    cache.refer(&hub.options.revision, &commit)?;
    Ok(snapshot)
}

/// One commit of a repository, on its way into the cache.
struct Revision<'a> {
    hub: &'a Hub<'a>,
    id: &'a str,
    commit: &'a str,
    cache: &'a Cache,
    progress: &'a dyn Progress,
}

impl Revision<'_> {
    async fn fetch_all(&self, names: Vec<&str>) -> Result<(), SourceError> {
        stream::iter(names)
            .map(async |name| {
                let file = self.hub.locate(self.id, self.commit, name).await?;
                download::fetch(self.hub, &file, self.cache, self.progress).await?;
                self.cache.link(self.commit, name, &file.etag)
            })
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }
}

fn no_weights(id: &str, wanted: Wanted<'_>, names: &[String]) -> SourceError {
    let id = id.to_owned();
    match wanted.variant {
        Some(variant) => {
            let files = names.iter().filter(|name| name.ends_with(".gguf")).cloned().collect();
            SourceError::NoVariant { id, variant: variant.to_owned(), files }
        }
        None if names.iter().any(|name| name == "adapter_config.json") => SourceError::AdapterOnly { id },
        None => SourceError::NoWeights { id },
    }
}
