//! `quire fetch`: brings a model to this machine ahead, for init containers and for processes that take a folder.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use model_source::{Need, Options};

use crate::{
    environment::Environment,
    serve::{
        is_served,
        screen::{Form, Screen},
    },
};

/// What to fetch.
#[derive(Args)]
pub struct FetchArgs {
    /// A Hugging Face id; a folder or .gguf file is only checked [default: the model that is part of this program]
    model: Option<String>,

    /// Branch, tag or commit of the hub's repository
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Folder of downloaded models [default: the Hugging Face cache]
    #[arg(long, value_name = "DIR")]
    download_dir: Option<PathBuf>,

    /// Make this path a link to the model
    #[arg(long, value_name = "PATH")]
    link: Option<PathBuf>,
}

/// Fetches it; prints where it lies.
pub fn run(args: FetchArgs, environment: &Environment) -> anyhow::Result<()> {
    // Fails only if one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = Options { check: Some(is_served), ..environment.models.clone() };
    if let Some(revision) = args.revision {
        options.revision = revision;
    }
    if let Some(folder) = args.download_dir {
        options.hub_cache = folder;
    }
    let screen = Screen::new(Form::Text);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = model_source::resolve(args.model.as_deref(), Need::Everything, &options, &screen);
    let model = runtime.block_on(found)?;
    if let Some(link) = &args.link {
        point(link, &model.path).with_context(|| format!("cannot make {} a link", link.display()))?;
    }
    println!("{}", model.path.display());
    Ok(())
}

/// Makes `link` a symbolic link to `target`, in one step: whoever follows it meanwhile gets the old target or the new.
fn point(link: &Path, target: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut new = link.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &new)?;
    fs::rename(&new, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_the_newest_model() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("models/current");
        for name in ["first", "second"] {
            let target = folder.path().join(name);
            fs::create_dir(&target).unwrap();
            point(&link, &target).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), target);
        }
        assert_eq!(fs::read_dir(folder.path().join("models")).unwrap().count(), 1);
        let taken = folder.path().join("first");
        assert!(point(&taken, &link).is_err(), "a folder is not replaced");
    }
}
