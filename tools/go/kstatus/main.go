// kstatus prints what sigs.k8s.io/cli-utils, as Flux uses it, says of Kubernetes objects: one JSON object for each
// one that it reads from standard input (a stream of JSON objects), in the same order.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("kstatus: ")
	decoder, encoder := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		// Decoded by apimachinery, whose numbers are the int64 that the library expects.
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatalf("the input is not a stream of JSON objects: %v", err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			log.Fatalf("this is not a Kubernetes object: %v", err)
		}
		result, err := status.Compute(object)
		if err != nil {
			log.Fatalf("%s/%s: %v", object.GetKind(), object.GetName(), err)
		}
		if err := encoder.Encode(map[string]string{"status": string(result.Status), "message": result.Message}); err != nil {
			log.Fatal(err)
		}
	}
}
