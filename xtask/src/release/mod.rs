//! `cargo xtask release`: the program in an archive, the chart, a bill of materials, and checksums of all.

mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// What to pack, and where to.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the files
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// Pack this program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// What lies beside the program in its archive.
const BESIDE: &[&str] =
    &["LICENSE", "README.md", "CHANGELOG.md", "docs", "deploy", "crates/default-model/files/ATTRIBUTION.md"];

/// Makes the files of a release.
pub fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => build(root)?,
    };
    let out = root.join(&args.out);
    fs::create_dir_all(&out)?;
    let bill = sbom::of(root)?;
    let version = bill.version.clone();
    let name = format!("quire-{version}-{}-linux", std::env::consts::ARCH);
    let folder = out.join(&name);
    lay_out(root, &program, &folder)?;
    let files = [format!("{name}.tar.gz"), format!("quire-chart-{version}.tgz"), format!("quire-{version}.cdx.json")];
    archive(root, &out, &Archive { file: &files[0], from: &out, folder: &name })?;
    // Helm reads archives as well as folders; links to the dashboards become files.
    archive(root, &out, &Archive { file: &files[1], from: &root.join("deploy/helm"), folder: "quire" })?;
    fs::write(out.join(&files[2]), serde_json::to_vec_pretty(&bill.document)?)?;
    fs::remove_dir_all(&folder)?;
    let sums = output(Command::new("sha256sum").args(&files).current_dir(&out))?;
    fs::write(out.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    Ok(())
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let build = ["build", "--release", "--locked", "--bin", "quire"];
    let built = Command::new("cargo").args(build).current_dir(root).status().context("cargo")?;
    ensure!(built.success(), "quire does not compile");
    Ok(root.join("target/release/quire"))
}

/// The archive's folder: the program without its debug information, and what belongs to it.
fn lay_out(root: &Path, program: &Path, folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    output(Command::new("strip").arg("--strip-debug").arg("-o").arg(folder.join("quire")).arg(program))?;
    output(Command::new("cp").args(["-rL", "-t"]).arg(folder).args(BESIDE).current_dir(root))?;
    Ok(())
}

/// A folder that becomes an archive.
struct Archive<'a> {
    file: &'a str,
    from: &'a Path,
    folder: &'a str,
}

/// The same tree gives the same bytes: entries are sorted, and their time is the commit's.
fn archive(root: &Path, out: &Path, archive: &Archive<'_>) -> anyhow::Result<()> {
    let time = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--dereference"]);
    tar.arg(format!("--mtime=@{}", time.trim())).args(["--use-compress-program", "gzip -n9", "-cf"]);
    tar.arg(out.join(archive.file)).arg("-C").arg(archive.from).arg(archive.folder);
    output(&mut tar)?;
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let ended = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
