// Validates objects of custom resources (a JSON list on standard input) against the schemas of their definitions.
import * as gateway from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as monitoring from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
import { readFileSync } from "node:fs";

const groups = {
  "gateway.networking.k8s.io/v1": gateway,
  "keda.sh/v1alpha1": keda,
  "monitoring.coreos.com/v1": monitoring,
};

// A schema that accepts anything would prove nothing.
try {
  new monitoring.ServiceMonitor({ metadata: { name: "x" }, spec: { selector: {}, endpoints: 3 } }).validate();
  console.error("a wrong ServiceMonitor passes");
  process.exit(1);
} catch {}

let failed = false;
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const Kind = groups[object.apiVersion]?.[object.kind];
  try {
    if (!Kind) throw new Error("no schema is known");
    new Kind(object).validate();
  } catch (error) {
    console.error(`${object.kind} ${object.metadata.name}: ${error}`);
    failed = true;
  }
}
process.exit(failed ? 1 : 0);
