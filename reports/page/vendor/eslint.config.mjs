// The page's scripts share one global scope; names that nothing declares are TypeScript's to find (tsconfig.json).
import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    languageOptions: { sourceType: "script", ecmaVersion: 2022 },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-undef": "off",
      "no-unused-vars": ["error", { vars: "local" }],
      eqeqeq: "error",
      "no-implied-eval": "error",
      "no-var": "error",
      "prefer-const": "error",
    },

  },
];
