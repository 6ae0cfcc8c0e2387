#!/bin/sh
# Prepares data, tunes, trains with the best parameters and registers the model. See docs/recipes.md.
set -eu
cd "$(dirname "$0")"

kubectl apply -f prepare.yaml
kubectl wait job/prepare --for=condition=Complete --timeout=10m

kubectl apply -f experiment.yaml
kubectl wait te/fit --for=jsonpath='{.status.completionTime}' --timeout=2h
kubectl wait te/fit --for=condition=Succeeded --timeout=1s

best=$(kubectl get te/fit -o jsonpath='{.status.best.params}')
kubectl create configmap fit-best --from-literal=config="$best" --dry-run=client -o yaml | kubectl apply -f -
kubectl apply -f train-best.yaml
kubectl wait job/train-best --for=condition=Complete --timeout=1h
kubectl logs job/train-best
