//! What the program is made of, as CycloneDX: every package that is linked into it, with licence and checksum.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::Context;
use cargo_metadata::{DependencyKind, MetadataCommand, Node, Package, PackageId};
use serde_json::{Value, json};

/// A bill of materials, and the version of what it describes.
pub(super) struct Bill {
    pub version: String,
    pub document: Value,
}

/// The bill of the `quire` program on this platform.
pub(super) fn of(root: &Path) -> anyhow::Result<Bill> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let options = ["--locked", "--filter-platform", platform.as_str()].map(str::to_owned);
    let graph = MetadataCommand::new().current_dir(root).other_options(options).exec()?;
    let packages: BTreeMap<&PackageId, &Package> = graph.packages.iter().map(|it| (&it.id, it)).collect();
    let resolved = graph.resolve.as_ref().context("a resolved graph")?;
    let nodes: BTreeMap<&PackageId, &Node> = resolved.nodes.iter().map(|node| (&node.id, node)).collect();
    let quire = graph.packages.iter().find(|it| it.name.as_str() == "quire").context("the package quire")?;
    let linked = linked(&quire.id, &nodes);
    let sums = checksums(&fs::read_to_string(root.join("Cargo.lock"))?);
    let components: Vec<Value> =
        linked.iter().filter(|id| **id != &quire.id).map(|id| component(packages[id], &sums)).collect();
    let arrows: Vec<Value> = linked
        .iter()
        .map(|id| {
            let on: Vec<String> = links(nodes[id]).map(|id| reference(packages[id])).collect();
            json!({"ref": reference(packages[id]), "dependsOn": on})
        })
        .collect();
    let version = quire.version.to_string();
    let document = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": reference(quire), "name": "quire", "version": version,
            "licenses": [{"expression": "Apache-2.0"}],
        }},
        "components": components, "dependencies": arrows,
    });
    Ok(Bill { version, document })
}

/// Whatever can be reached by dependencies that are linked: not those of tests and build scripts.
fn linked<'g>(from: &'g PackageId, nodes: &BTreeMap<&'g PackageId, &'g Node>) -> BTreeSet<&'g PackageId> {
    let (mut found, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(id) = open.pop() {
        open.extend(links(nodes[id]).filter(|id| found.insert(id)));
    }
    found
}

fn links(node: &Node) -> impl Iterator<Item = &PackageId> {
    let is_linked = |kind: &cargo_metadata::DepKindInfo| kind.kind == DependencyKind::Normal;
    node.deps.iter().filter(move |dep| dep.dep_kinds.iter().any(is_linked)).map(|dep| &dep.pkg)
}

fn component(package: &Package, sums: &BTreeMap<String, String>) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": reference(package), "name": package.name.as_str(),
        "version": package.version.to_string(), "purl": reference(package),
    });
    if let Some(licence) = &package.license {
        // Older packages separate their licences by a slash.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(sum) = sums.get(&key(package.name.as_str(), &package.version.to_string())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn key(name: &str, version: &str) -> String {
    format!("{name} {version}")
}

/// Checksums of Cargo.lock by name and version.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let package = |text: &str| {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            line.map(|value| value.trim_end_matches('"').to_owned())
        };
        Some((key(&field("name")?, &field("version")?), field("checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_linked_and_nothing_else() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bill = of(root).unwrap().document;
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|it| it["name"] == name);
        let tokio = named("tokio").expect("tokio is linked");
        assert_eq!(tokio["licenses"][0]["expression"], "MIT");
        assert_eq!(tokio["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(named("worker-svc").is_some() && named("proptest").is_none() && named("protox").is_none());
        let references: BTreeSet<&str> = components.iter().map(|it| it["bom-ref"].as_str().unwrap()).collect();
        for arrow in bill["dependencies"].as_array().unwrap() {
            for on in arrow["dependsOn"].as_array().unwrap() {
                assert!(references.contains(on.as_str().unwrap()), "{on}");
            }
        }
        assert!(components.iter().all(|it| it["licenses"].is_array()), "every package states its licence");
    }
}
