// celcost prints what the API server estimates that each CEL rule of a CRD costs at worst, as JSON lines.
//
//	celcost < crd.yaml
//
// Rules are compiled for the oldest Kubernetes that is supported, so that a function of a later one is an error here.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const oldest = "1.31"

// estimate is one line of the output.
type estimate struct {
	Path              string `json:"path"`
	Rule              string `json:"rule"`
	Cost              uint64 `json:"cost"`
	MessageExpression uint64 `json:"messageExpression"`
	Error             string `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "celcost:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	crd := apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return err
	}
	for _, v := range crd.Spec.Versions {
		internal := apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return err
		}
		structural, err := structuralschema.NewStructural(&internal)
		if err != nil {
			return err
		}
		w := walker{
			out: json.NewEncoder(out),
			env: environment.MustBaseEnvSet(version.MustParseGeneric(oldest)),
		}
		if err := w.walk("", structural, true, 1); err != nil {
			return err
		}
	}
	return nil
}

type walker struct {
	out *json.Encoder
	env *environment.EnvSet
}

// walk visits a schema of which an object holds at most `times` values.
func (w walker) walk(path string, s *structuralschema.Structural, root bool, times uint64) error {
	if err := w.rules(path, s, root, times); err != nil {
		return err
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		child := s.Properties[name]
		if err := w.walk(path+"."+name, &child, false, times); err != nil {
			return err
		}
	}
	if s.Items != nil {
		return w.walk(path+"[]", s.Items, false, times*most(s.ValueValidation.MaxItems))
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		return w.walk(path+"{}", s.AdditionalProperties.Structural, false, times*most(s.ValueValidation.MaxProperties))
	}
	return nil
}

// most is a bound, or what is as good as none.
func most(bound *int64) uint64 {
	if bound == nil {
		return 1 << 20
	}
	return uint64(*bound)
}

func (w walker) rules(path string, s *structuralschema.Structural, root bool, times uint64) error {
	if len(s.XValidations) == 0 {
		return nil
	}
	results, err := cel.Compile(s, model.SchemaDeclType(s, root), celconfig.PerCallLimit, w.env, cel.NewExpressionsEnvLoader())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, result := range results {
		line := estimate{
			Path:              path,
			Rule:              s.XValidations[i].Rule,
			Cost:              result.MaxCost * times,
			MessageExpression: result.MessageExpressionMaxCost,
		}
		switch {
		case result.Error != nil:
			line.Error = result.Error.Error()
		case result.MessageExpressionError != nil:
			line.Error = result.MessageExpressionError.Error()
		}
		if err := w.out.Encode(line); err != nil {
			return err
		}
	}
	return nil
}
