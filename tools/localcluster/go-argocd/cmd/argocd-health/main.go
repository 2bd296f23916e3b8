// Reads objects, one JSON document after the other, and prints the health that Argo CD's own code gives each, with the
// script as the platform team configures it, a line of JSON each.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("usage: argocd-health SCRIPT.lua < OBJECTS"))
	}
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	overrides := lua.ResourceHealthOverrides{
		"llmservice.dev/LLMService": v1alpha1.ResourceOverride{HealthLua: string(script)},
	}
	objects, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			fail(err)
		}
		told, err := health.GetResourceHealth(object, overrides)
		if err != nil {
			fail(err)
		}
		if err := answers.Encode(told); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
